"""Layer 3b: creation and end of graphs, and the objects that their work keeps alive."""

from __future__ import annotations

import ctypes
import time

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    FUNCTION,
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
    settled_threads,
)
from tests.nccl.emulated.graphs import branches, capture, launch

AUTO_FREE, DEVICE_LAUNCH, NODE_PRIORITY = 1, 4, 8
"""Flags of cudaGraphInstantiate, as in driver_types.h."""


# Creation and end


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


# Objects that work keeps alive


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
