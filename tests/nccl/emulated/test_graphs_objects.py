"""Layer 3b: user objects of graphs."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from tests.nccl.emulated.calls import (
    FUNCTION,
    LEGACY,
    LONG,
    Error,
    Log,
    Things,
    code,
    function,
    made,
    ok,
)

MOVE = 1
"""The flag of cudaGraphRetainUserObject."""


class Object:
    """A user object with a reference, and the arguments of its destructor."""

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
