"""Layer 3b: queries of a capture, and dependencies that a caller sets."""

from __future__ import annotations

import ctypes

import pytest

from tests.nccl.emulated.calls import Error, Log, Things, code, ok, put
from tests.nccl.emulated.captures import ACTIVE, INVALID, NONE, begin, end, fork, names, run


class Info:
    """The results of cudaStreamGetCaptureInfo."""

    def __init__(self, stream: int, version: int = 2) -> None:
        status, id, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p()
        nodes, number = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        name, _, has_edges = names(version)
        edges = [ctypes.byref(ctypes.c_void_p())] * has_edges
        places = [ctypes.byref(place) for place in (status, id, graph, nodes)]
        ok(name, stream, *places, *edges, ctypes.byref(number))
        self.status, self.id, self.graph = status.value, id.value, graph.value
        self.nodes = [nodes[i] or 0 for i in range(number.value)]


@pytest.mark.parametrize("version", [2, 3])
def test_what_a_capture_tells_of_itself(things: Things, version: int) -> None:
    stream = things.stream()
    assert Info(stream, version).status == NONE
    begin(stream)
    first = Info(stream, version)
    assert (first.status, first.nodes) == (ACTIVE, [])
    put(stream, lambda: None)
    second = Info(stream, version)
    assert len(second.nodes) == 1
    assert (second.id, second.graph) == (first.id, first.graph)
    # The graph belongs to the capture until its end.
    assert code("cudaGraphDestroy", first.graph or 0) == Error.INVALID_VALUE
    assert things.captured(stream) == first.graph
    begin(stream)
    assert Info(stream, version).id != first.id
    assert code("cudaStreamQuery", stream) == Error.UNSUPPORTED
    assert Info(stream, version).status == INVALID
    assert end(stream) == Error.INVALIDATED


def test_places_of_answers(things: Things) -> None:
    stream = things.stream()
    name, _, _ = names(3)
    state, edges = ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_void_p())
    assert code(name, stream, None, *[None] * 5) == Error.INVALID_VALUE
    ok(name, stream, state, *[None] * 5)
    assert code(name, stream, state, None, None, None, edges, None) == Error.INVALID_VALUE
    assert code("cudaStreamIsCapturing", stream, None) == Error.INVALID_VALUE


def nodes(handles: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(handles))(*handles)


@pytest.mark.parametrize("version", [2, 3])
def test_dependencies_are_added_or_replaced(things: Things, version: int) -> None:
    stream, other, log = things.stream(), things.stream(), Log()
    _, name, has_edges = names(version)
    edges = [None] * has_edges
    begin(stream)
    fork(things, stream, other)
    log.put(other, "other")
    (of_other,) = Info(other).nodes
    log.put(stream, "stream")
    (of_stream,) = Info(stream).nodes
    ok(name, stream, nodes([of_other]), *edges, 1, 0)
    assert Info(stream).nodes == [of_stream, of_other]
    ok(name, stream, nodes([of_other]), *edges, 1, 1)
    # A node taken out of the dependencies need not be joined.
    assert Info(stream).nodes == [of_other]
    run(things, things.captured(stream))
    assert sorted(log) == ["other", "stream"]
    assert code(name, stream, nodes([of_other]), *edges, 1, 0) == Error.ILLEGAL_STATE


def test_dependencies_that_are_none(things: Things) -> None:
    stream, (_, name, _) = things.stream(), names(3)
    begin(stream)
    put(stream, lambda: None)
    (node,) = Info(stream).nodes
    assert code(name, stream, nodes([node]), None, 1, 2) == Error.INVALID_VALUE
    assert code(name, stream, None, None, 1, 0) == Error.INVALID_VALUE
    for wrong in (0, node + 1, node - 1):
        assert code(name, stream, nodes([wrong]), None, 1, 0) == Error.INVALID_VALUE
    assert Info(stream).nodes == [node]
    things.captured(stream)


def test_edges_with_data_are_refused_by_name(
    things: Things, capfd: pytest.CaptureFixture[str]
) -> None:
    stream, data = things.stream(), ctypes.create_string_buffer(8)
    begin(stream)
    _, name, _ = names(3)
    assert code(name, stream, nodes([0]), data, 1, 0) == Error.NOT_SUPPORTED
    assert capfd.readouterr().err == "emulated: cudaGraphEdgeData is not emulated\n"
    things.captured(stream)
