"""Graphs of the emulated runtime: order, launches, their end, user objects."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    FUNCTION,
    LEGACY,
    LONG,
    Error,
    Gate,
    Log,
    Things,
    alone,
    code,
    function,
    made,
    ok,
    put,
    settled_threads,
)

AUTO_FREE, DEVICE_LAUNCH, NODE_PRIORITY = 1, 4, 8
"""Flags of cudaGraphInstantiate, as in driver_types.h."""

MOVE = 1
"""The flag of cudaGraphRetainUserObject."""


def capture(things: Things, stream: int, *names: str, log: Log) -> int:
    """An executable graph of work in a row."""
    ok("cudaStreamBeginCapture", stream, 0)
    for name in names:
        log.put(stream, name)
    return things.exec(things.captured(stream))


def branches(things: Things, log: Log, number: int) -> int:
    """An executable graph of `first`, then branches of two nodes each, then `last`."""
    stream = things.stream()
    ok("cudaStreamBeginCapture", stream, 0)
    log.put(stream, "first")
    begun = things.recorded(stream)
    for n in range(number):
        other = things.stream()
        ok("cudaStreamWaitEvent", other, begun, 0)
        log.put(other, f"{n} begins")
        log.put(other, f"{n} ends")
        ok("cudaStreamWaitEvent", stream, things.recorded(other), 0)
    log.put(stream, "last")
    return things.exec(things.captured(stream))


def launch(exec: int, stream: int) -> None:
    ok("cudaGraphLaunch", exec, stream)
    ok("cudaStreamSynchronize", stream)


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
    # The first launch of the second graph is that of the first.
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
    # Another executable graph of the same is free to.
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
    # It is a copy: the inner one may go.
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


# Instantiation and the end


def test_an_executable_graph_needs_its_graph_no_more(things: Things) -> None:
    stream, log = things.stream(), Log()
    ok("cudaStreamBeginCapture", stream, 0)
    log.put(stream, "captured")
    graph = things.captured(stream)
    execs = [things.exec(graph), made("cudaGraphInstantiateWithFlags", graph, NODE_PRIORITY)]
    assert control.count("graph_execs") == 2
    ok("cudaGraphDestroy", graph)
    assert control.count("graphs") == 0
    for exec in execs:
        launch(exec, stream)
    assert log == ["captured"] * 2
    ok("cudaGraphExecDestroy", execs[1])


def test_flags_of_instantiation(things: Things, capfd: pytest.CaptureFixture[str]) -> None:
    stream = things.stream()
    ok("cudaStreamBeginCapture", stream, 0)
    graph = things.captured(stream)
    exec = ctypes.byref(ctypes.c_void_p())
    for name in ("cudaGraphInstantiate", "cudaGraphInstantiateWithFlags"):
        assert code(name, exec, graph, 16) == Error.INVALID_VALUE
        assert code(name, None, graph, 0) == Error.INVALID_VALUE
        assert code(name, exec, 0, 0) == Error.INVALID_VALUE
    ok("cudaGraphExecDestroy", made("cudaGraphInstantiate", graph, AUTO_FREE))
    assert code("cudaGraphInstantiate", exec, graph, DEVICE_LAUNCH) == Error.NOT_SUPPORTED
    said = "emulated: cudaGraphInstantiateFlagDeviceLaunch is not emulated\n"
    assert capfd.readouterr().err == said


def test_a_graph_that_is_destroyed_in_flight_runs_to_its_end(things: Things) -> None:
    stream, log = things.stream(), Log()
    exec = capture(things, stream, "a", "b", log=log)
    gate = things.gate(stream)
    ok("cudaGraphLaunch", exec, stream)
    begin = time.monotonic()
    ok("cudaGraphExecDestroy", exec)
    assert time.monotonic() - begin < LONG / 2
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == ["a", "b"]


def test_handles_that_are_none(things: Things) -> None:
    stream, log = things.stream(), Log()
    exec = capture(things, stream, "captured", log=log)
    ok("cudaGraphExecDestroy", exec)
    for handle in (0, exec, stream):
        assert code("cudaGraphLaunch", handle, stream) == Error.INVALID_VALUE
        assert code("cudaGraphUpload", handle, stream) == Error.INVALID_VALUE
        assert code("cudaGraphExecDestroy", handle) == Error.INVALID_VALUE
        assert code("cudaGraphDestroy", handle) == Error.INVALID_VALUE
    exec = capture(things, stream, "captured", log=log)
    for name in ("cudaGraphLaunch", "cudaGraphUpload"):
        assert code(name, exec, 0x5EED) == Error.INVALID_HANDLE


def test_an_update_is_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert code("cudaGraphExecUpdate", 0, 0, 0) == Error.NOT_SUPPORTED
    assert capfd.readouterr().err == "emulated: cudaGraphExecUpdate is not emulated\n"


def _a_lost_device() -> None:
    log, stream = Log(), made("cudaStreamCreateWithFlags", 1)
    things = Things()
    exec = capture(things, stream, "a", "b", log=log)
    gate = Gate(stream)
    ok("cudaGraphLaunch", exec, stream)
    gate.begun()
    control.fail("cudaGraphLaunch", 1, Error.LAUNCH_FAILURE, sticky=True)
    assert code("cudaGraphLaunch", exec, stream) == Error.LAUNCH_FAILURE
    gate.open()
    time.sleep(0.1)
    assert log == []


def test_no_node_runs_on_a_lost_device() -> None:
    alone(_a_lost_device)


def test_many_graphs_leave_nothing(things: Things) -> None:
    stream, log = things.stream(), Log()
    threads = settled_threads()
    for n in range(200):
        with Things() as short:
            exec = branches(short, log, 2)
            ok("cudaGraphLaunch", exec, stream)
        if n % 50 == 0:
            ok("cudaStreamSynchronize", stream)
    ok("cudaStreamSynchronize", stream)
    assert len(log) == 200 * 6
    assert control.count("graph_execs") == control.count("graphs") == 0
    assert settled_threads() <= threads + 1


# What work holds


def test_captured_work_is_released_with_the_last_graph_that_has_it(things: Things) -> None:
    stream, released = things.stream(), list[int]()
    release = FUNCTION(lambda data: released.append(data))
    ok("cudaStreamBeginCapture", stream, 0)
    ok("emulated_enqueue", stream, function(lambda: None), 5, release)
    graph = things.captured(stream)
    exec = things.exec(graph)
    launch(exec, stream)
    gate = things.gate(stream)
    ok("cudaGraphLaunch", exec, stream)
    ok("cudaGraphDestroy", graph)
    ok("cudaGraphExecDestroy", exec)
    assert released == []
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert released == [5]


@pytest.mark.parametrize("last", ["cudaGraphDestroy", "cudaGraphExecDestroy"])
def test_what_is_released_may_ask_the_runtime(things: Things, last: str) -> None:
    stream, devices = things.stream(), list[int]()
    release = FUNCTION(lambda _: devices.append(code("emulated_stream_device", stream)))
    ok("cudaStreamBeginCapture", stream, 0)
    ok("emulated_enqueue", stream, function(lambda: None), 5, release)
    graph = things.captured(stream)
    exec = things.exec(graph)
    for name, handle in (("cudaGraphDestroy", graph), ("cudaGraphExecDestroy", exec)):
        if name != last:
            ok(name, handle)
    assert devices == []
    ok(last, graph if last == "cudaGraphDestroy" else exec)
    assert devices == [0]


def test_work_of_a_spoilt_capture_is_released(things: Things) -> None:
    stream, released = things.stream(), list[int]()
    release = FUNCTION(lambda data: released.append(data))
    ok("cudaStreamBeginCapture", stream, 0)
    ok("emulated_enqueue", stream, function(lambda: None), 5, release)
    assert code("cudaStreamQuery", stream) == Error.UNSUPPORTED
    graph = ctypes.c_void_p()
    assert code("cudaStreamEndCapture", stream, ctypes.byref(graph)) == Error.INVALIDATED
    assert released == [5]


# User objects


class Object:
    """A user object with a reference, and what its destructor was called with."""

    def __init__(self, references: int = 1) -> None:
        self.destroyed: list[tuple[int, int, bool]] = []
        self._event = threading.Event()
        self._function = FUNCTION(self._destroy)
        self.handle = made("cudaUserObjectCreate", 42, self._function, references, 1)

    def _destroy(self, data: int) -> None:
        allowed = code("cudaStreamQuery", LEGACY)
        own = threading.current_thread() is threading.main_thread()
        self.destroyed.append((data, allowed, own))
        self._event.set()

    def is_destroyed(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        assert self._event.wait(LONG)
        assert self.destroyed == [(42, Error.NOT_PERMITTED, False)]

    def release(self, number: int = 1) -> None:
        ok("cudaUserObjectRelease", self.handle, number)


def test_a_user_object_ends_with_its_last_reference() -> None:
    object = Object(2)
    ok("cudaUserObjectRetain", object.handle, 1)
    object.release(2)
    time.sleep(0.02)
    assert not object.is_destroyed()
    object.release()
    object.wait()
    assert code("cudaUserObjectRelease", object.handle, 1) == Error.INVALID_VALUE


@pytest.mark.parametrize("move", [0, MOVE])
def test_a_graph_and_its_executable_graphs_each_refer_to_it(things: Things, move: int) -> None:
    stream, object, log = things.stream(), Object(), Log()
    ok("cudaStreamBeginCapture", stream, 0)
    log.put(stream, "captured")
    graph = things.captured(stream)
    ok("cudaGraphRetainUserObject", graph, object.handle, 1, move)
    if not move:
        object.release()
    execs = [things.exec(graph), things.exec(graph)]
    ok("cudaGraphDestroy", graph)
    ok("cudaGraphExecDestroy", execs[0])
    gate = things.gate(stream)
    ok("cudaGraphLaunch", execs[1], stream)
    ok("cudaGraphExecDestroy", execs[1])
    time.sleep(0.02)
    assert not object.is_destroyed(), "the graph that refers to it is in flight"
    gate.open()
    ok("cudaStreamSynchronize", stream)
    object.wait()


def test_a_graph_releases_what_it_has(things: Things) -> None:
    stream, object = things.stream(), Object()
    ok("cudaStreamBeginCapture", stream, 0)
    graph = things.captured(stream)
    ok("cudaGraphRetainUserObject", graph, object.handle, 2, 0)
    assert code("cudaGraphReleaseUserObject", graph, object.handle, 3) == Error.INVALID_VALUE
    ok("cudaGraphReleaseUserObject", graph, object.handle, 2)
    assert code("cudaGraphReleaseUserObject", graph, object.handle, 1) == Error.INVALID_VALUE
    object.release()
    object.wait()
    ok("cudaGraphDestroy", graph)
    assert len(object.destroyed) == 1


def test_wrong_references_are_refused(things: Things) -> None:
    stream, object = things.stream(), Object()
    ok("cudaStreamBeginCapture", stream, 0)
    graph = things.captured(stream)
    where, run = ctypes.byref(ctypes.c_void_p()), function(lambda: None)
    create = "cudaUserObjectCreate"
    assert code(create, None, 42, run, 1, 1) == Error.INVALID_VALUE
    assert code(create, where, 42, None, 1, 1) == Error.INVALID_VALUE
    assert code(create, where, 42, run, 0, 1) == Error.INVALID_VALUE
    assert code(create, where, 42, run, 1, 0) == Error.INVALID_VALUE
    for name in ("cudaUserObjectRetain", "cudaUserObjectRelease"):
        assert code(name, 0, 1) == Error.INVALID_VALUE
        assert code(name, object.handle, 0) == Error.INVALID_VALUE
        assert code(name, object.handle, 2**31) == Error.INVALID_VALUE
    retain = "cudaGraphRetainUserObject"
    assert code(retain, 0, object.handle, 1, 0) == Error.INVALID_VALUE
    assert code(retain, graph, 0, 1, 0) == Error.INVALID_VALUE
    assert code(retain, graph, object.handle, 0, 0) == Error.INVALID_VALUE
    assert code(retain, graph, object.handle, 1, 2) == Error.INVALID_VALUE
    object.release()
    object.wait()


def test_host_functions_of_a_graph_by_cupy(things: Things) -> None:
    cupy = pytest.importorskip("cupy")
    stream, got = cupy.cuda.Stream(non_blocking=True), list[int]()
    with stream:
        stream.begin_capture()
        stream.launch_host_func(got.append, 7)
        graph = stream.end_capture()
        assert got == []
        graph.upload()
        graph.launch()
        graph.launch()
        stream.synchronize()
    assert got == [7, 7]
    del graph, stream
