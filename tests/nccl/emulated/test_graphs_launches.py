"""Layer 3b: launches of graphs, and the order of their nodes."""

from __future__ import annotations

import ctypes
import time

from tests.nccl.emulated.calls import LEGACY, Error, Log, Things, alone, code, ok, put
from tests.nccl.emulated.graphs import branches, capture, launch

# Order


def test_a_launch_is_work_of_its_stream(things: Things) -> None:
    stream, log = things.stream(), Log()
    exec = capture(things, things.stream(), "a", "b", log=log)
    gate = things.gate(stream)
    log.put(stream, "before")
    ok("cudaGraphLaunch", exec, stream)
    log.put(stream, "after")
    assert log == []
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == ["before", "a", "b", "after"]


def test_branches_run_in_any_order_that_the_graph_allows(things: Things) -> None:
    stream, log = things.stream(), Log()
    exec = branches(things, log, 3)
    seen = set()
    for _ in range(40):
        log.clear()
        launch(exec, stream)
        assert len(log) == 8
        assert (log[0], log[-1]) == ("first", "last")
        for n in range(3):
            assert log.index(f"{n} begins") < log.index(f"{n} ends")
        seen.add(tuple(log))
    assert len(seen) > 10


def _orders() -> None:
    with Things() as things:
        log, stream = Log(), things.stream()
        for exec in (branches(things, log, 3), branches(things, log, 3)):
            for _ in range(5):
                launch(exec, stream)
        print("\n".join(log))


def test_one_seed_gives_one_order_for_the_nth_launch_of_a_graph() -> None:
    printed = {seed: alone(_orders, EMULATED_ORDER=seed) for seed in ("0", "1", "2")}
    assert printed["1"] == alone(_orders, EMULATED_ORDER="1")
    assert len(set(printed.values())) == 3
    lines = printed["1"].splitlines()
    # The first launch of the second graph has the order of the first graph's first.
    assert lines[:40] == lines[40:]


def test_a_wait_for_an_event_that_another_branch_records(things: Things) -> None:
    stream, other, log = things.stream(), things.stream(), Log()
    event = things.event()
    ok("cudaStreamBeginCapture", stream, 0)
    ok("cudaStreamWaitEvent", other, things.recorded(stream), 0)
    ok("cudaEventRecordWithFlags", event, other, 1)
    log.put(other, "recorded")
    ok("cudaStreamWaitEvent", stream, event, 1)
    log.put(stream, "waited")
    ok("cudaStreamWaitEvent", stream, things.recorded(other), 0)
    exec = things.exec(things.captured(stream))
    for _ in range(20):
        launch(exec, stream)
    assert len(log) == 40


# Launches


def test_launches_of_one_executable_graph_never_overlap(things: Things) -> None:
    streams, log = [things.stream() for _ in range(4)], Log()
    inside, most = 0, 0

    def body() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1

    ok("cudaStreamBeginCapture", streams[0], 0)
    put(streams[0], body)
    graph = things.captured(streams[0])
    exec, another = things.exec(graph), things.exec(graph)
    for stream in streams:
        ok("cudaGraphLaunch", exec, stream)
    ok("cudaDeviceSynchronize")
    assert most == 1
    # Another executable graph of the same capture may run.
    gate = things.gate(streams[0])
    ok("cudaGraphLaunch", exec, streams[0])
    ok("cudaGraphLaunch", exec, streams[1])
    log.put(streams[1], "held")
    launch(another, streams[2])
    assert log == []
    gate.open()
    ok("cudaStreamSynchronize", streams[1])
    assert log == ["held"]


def test_a_graph_without_nodes_can_be_launched(things: Things) -> None:
    stream = things.stream()
    ok("cudaStreamBeginCapture", stream, 0)
    launch(things.exec(things.captured(stream)), stream)


def test_a_launch_on_the_legacy_stream_waits_for_blocking_streams(things: Things) -> None:
    stream, log = things.stream(0), Log()
    exec = capture(things, things.stream(), "captured", log=log)
    gate = things.gate(stream)
    ok("cudaGraphLaunch", exec, LEGACY)
    time.sleep(0.05)
    assert log == []
    gate.open()
    ok("cudaStreamSynchronize", LEGACY)
    assert log == ["captured"]


def test_a_launch_in_a_capture_becomes_a_node(things: Things) -> None:
    stream, log = things.stream(), Log()
    inner = capture(things, stream, "a", "b", log=log)
    ok("cudaStreamBeginCapture", stream, 0)
    log.put(stream, "before")
    ok("cudaGraphLaunch", inner, stream)
    log.put(stream, "after")
    outer = things.exec(things.captured(stream))
    assert log == []
    # The node has a copy, so the inner graph may be destroyed.
    ok("cudaGraphExecDestroy", inner)
    for _ in range(2):
        launch(outer, stream)
    assert log == ["before", "a", "b", "after"] * 2


def test_an_upload_runs_nothing(things: Things) -> None:
    stream, log = things.stream(), Log()
    exec = capture(things, stream, "captured", log=log)
    ok("cudaGraphUpload", exec, stream)
    ok("cudaStreamSynchronize", stream)
    assert log == []
    ok("cudaStreamBeginCapture", stream, 0)
    assert code("cudaGraphUpload", exec, stream) == Error.UNSUPPORTED
    graph = ctypes.c_void_p()
    assert code("cudaStreamEndCapture", stream, ctypes.byref(graph)) == Error.INVALIDATED
