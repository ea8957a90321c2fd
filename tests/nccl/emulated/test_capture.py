"""Captures of the emulated runtime: what they take, what they forbid, what spoils them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    BLOCKING,
    LEGACY,
    LONG,
    NON_BLOCKING,
    PER_THREAD,
    Error,
    Log,
    Things,
    alone,
    code,
    function,
    made,
    number,
    ok,
    put,
)

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
"""Modes of captures and of threads."""

NONE, ACTIVE, INVALID = 0, 1, 2
"""Statuses of streams."""

EXTERNAL = 1
MODES = pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])


def begin(stream: int, mode: int = GLOBAL) -> None:
    ok("cudaStreamBeginCapture", stream, mode)


def end(stream: int) -> int:
    """End a capture that must fail; return the code."""
    graph = ctypes.c_void_p(7)
    got = code("cudaStreamEndCapture", stream, ctypes.byref(graph))
    assert got
    assert graph.value is None
    assert status(stream) == NONE
    return got


def status(stream: int) -> int:
    return int(number("cudaStreamIsCapturing", stream))


def run(things: Things, graph: int) -> None:
    stream = things.stream()
    ok("cudaGraphLaunch", things.exec(graph), stream)
    ok("cudaStreamSynchronize", stream)


def in_thread(call: Callable[[], object]) -> list[object]:
    """What a call returns in another thread."""
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()
    return got


def fork(things: Things, origin: int, *streams: int) -> None:
    event = things.recorded(origin)
    for stream in streams:
        ok("cudaStreamWaitEvent", stream, event, 0)


def join(things: Things, origin: int, *streams: int) -> None:
    for stream in streams:
        ok("cudaStreamWaitEvent", origin, things.recorded(stream), 0)


# What is captured


@MODES
@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_work_is_captured_and_does_not_run(things: Things, mode: int, flags: int) -> None:
    stream, log = things.stream(flags), Log()
    log.put(stream, "before")
    begin(stream, mode)
    assert status(stream) == ACTIVE
    assert control.count("captures") == 1
    log.put(stream, "captured")
    graph = things.captured(stream)
    assert (status(stream), control.count("captures")) == (NONE, 0)
    log.put(stream, "after")
    ok("cudaStreamSynchronize", stream)
    assert log == ["before", "after"]
    run(things, graph)
    run(things, graph)
    assert log == ["before", "after", "captured", "captured"]


def test_the_per_thread_stream_can_be_captured(things: Things) -> None:
    log = Log()
    begin(PER_THREAD)
    log.put(PER_THREAD, "captured")
    run(things, things.captured(PER_THREAD))
    assert log == ["captured"]


@pytest.mark.parametrize("default", [0, LEGACY])
def test_the_legacy_stream_cannot_be_captured(default: int) -> None:
    assert code("cudaStreamBeginCapture", default, RELAXED) == Error.UNSUPPORTED


def test_a_capture_is_begun_once_and_ended_once(things: Things) -> None:
    stream = things.stream()
    assert end(stream) == Error.ILLEGAL_STATE
    begin(stream)
    assert code("cudaStreamBeginCapture", stream, GLOBAL) == Error.ILLEGAL_STATE
    assert status(stream) == ACTIVE
    things.captured(stream)
    assert end(stream) == Error.ILLEGAL_STATE
    assert code("cudaStreamBeginCapture", stream, 3) == Error.INVALID_VALUE
    assert code("cudaStreamEndCapture", stream, None) == Error.INVALID_VALUE


def test_a_host_function_is_captured_and_a_callback_is_not(things: Things) -> None:
    stream, log = things.stream(), Log()
    begin(stream)
    ok("cudaLaunchHostFunc", stream, function(lambda: log.append("host")), None)
    run(things, things.captured(stream))
    assert log == ["host"]
    begin(stream)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)
    assert code("cudaStreamAddCallback", stream, call, None, 0) == Error.UNSUPPORTED
    assert end(stream) == Error.INVALIDATED


def test_work_that_was_there_before_is_no_dependency(things: Things) -> None:
    stream, log = things.stream(), Log()
    gate = things.gate(stream)
    begin(stream)
    log.put(stream, "captured")
    run(things, things.captured(stream))
    assert log == ["captured"]
    gate.open()


# Streams that are drawn in


def test_an_event_draws_a_stream_in_and_another_joins_it(things: Things) -> None:
    origin, other, log = things.stream(), things.stream(), Log()
    begin(origin)
    log.put(origin, "first")
    fork(things, origin, other)
    assert status(other) == ACTIVE
    log.put(other, "second")
    join(things, origin, other)
    log.put(origin, "third")
    graph = things.captured(origin)
    assert status(other) == NONE
    assert log == []
    run(things, graph)
    assert log == ["first", "second", "third"]


def test_a_stream_without_work_of_its_own_need_not_be_joined(things: Things) -> None:
    origin, other = things.stream(), things.stream()
    begin(origin)
    put(origin, lambda: None)
    fork(things, origin, other)
    things.captured(origin)


@pytest.mark.parametrize("joined_before", [False, True])
def test_a_stream_whose_work_is_not_joined(things: Things, joined_before: bool) -> None:
    origin, other, log = things.stream(), things.stream(), Log()
    begin(origin)
    fork(things, origin, other)
    log.put(other, "joined")
    if joined_before:
        join(things, origin, other)
        log.put(other, "not joined")
    assert end(origin) == Error.UNJOINED
    assert status(other) == NONE


def test_streams_are_joined_through_others(things: Things) -> None:
    origin, second, third, log = (things.stream(), things.stream(), things.stream(), Log())
    begin(origin)
    fork(things, origin, second)
    log.put(second, "second")
    fork(things, second, third)
    log.put(third, "third")
    join(things, origin, third)
    run(things, things.captured(origin))
    assert log == ["second", "third"]


def test_a_destroyed_stream_must_have_been_joined(things: Things) -> None:
    origin, log = things.stream(), Log()
    for joined in (True, False):
        other = made("cudaStreamCreateWithFlags", NON_BLOCKING)
        begin(origin)
        fork(things, origin, other)
        log.put(other, "other")
        if joined:
            join(things, origin, other)
        ok("cudaStreamDestroy", other)
        if joined:
            things.captured(origin)
        else:
            assert end(origin) == Error.UNJOINED


def test_a_capture_ends_with_its_stream(things: Things) -> None:
    origin, other = made("cudaStreamCreateWithFlags", NON_BLOCKING), things.stream()
    before = control.count("graphs")
    begin(origin)
    fork(things, origin, other)
    ok("cudaStreamDestroy", origin)
    assert status(other) == NONE
    assert (control.count("captures"), control.count("graphs")) == (0, before)
    graph = ctypes.c_void_p()
    assert code("cudaStreamEndCapture", origin, ctypes.byref(graph)) == Error.DESTROYED


def test_two_captures_cannot_be_merged(things: Things) -> None:
    first, second = things.stream(), things.stream()
    begin(first)
    begin(second)
    event = things.recorded(first)
    assert code("cudaStreamWaitEvent", second, event, 0) == Error.MERGE
    assert (status(first), status(second)) == (INVALID, INVALID)
    assert end(first) == Error.INVALIDATED
    assert end(second) == Error.INVALIDATED


def test_the_end_is_on_the_stream_of_the_begin(things: Things) -> None:
    origin, other = things.stream(), things.stream()
    begin(origin)
    fork(things, origin, other)
    graph = ctypes.c_void_p()
    assert code("cudaStreamEndCapture", other, ctypes.byref(graph)) == Error.UNMATCHED
    assert end(origin) == Error.INVALIDATED


@MODES
def test_the_end_is_in_the_thread_of_the_begin(things: Things, mode: int) -> None:
    stream = things.stream()
    begin(stream, mode)
    graph = ctypes.c_void_p()
    got = in_thread(lambda: code("cudaStreamEndCapture", stream, ctypes.byref(graph)))
    if mode == RELAXED:
        assert got == [0]
        ok("cudaGraphDestroy", graph.value or 0)
    else:
        assert got == [Error.WRONG_THREAD]
        assert end(stream) == Error.INVALIDATED


# Events on both sides of a capture's border


def test_a_captured_stream_cannot_wait_for_an_event_of_outside(things: Things) -> None:
    stream, other = things.stream(), things.stream()
    for event in (things.event(), things.recorded(other), things.recorded(stream)):
        begin(stream)
        assert code("cudaStreamWaitEvent", stream, event, 0) == Error.ISOLATION
        assert end(stream) == Error.INVALIDATED


def test_unknown_flags_are_refused_in_a_capture_too(things: Things) -> None:
    stream, event = things.stream(), things.event()
    begin(stream)
    assert code("cudaEventRecordWithFlags", event, stream, 2) == Error.INVALID_VALUE
    assert code("cudaStreamWaitEvent", stream, event, 2) == Error.INVALID_VALUE
    things.captured(stream)


def test_the_end_of_a_capture_ends_its_events(things: Things) -> None:
    stream, other = things.stream(), things.stream()
    begin(stream)
    event = things.recorded(stream)
    things.captured(stream)
    ms = ctypes.byref(ctypes.c_float())
    assert code("cudaStreamWaitEvent", other, event, 0) == Error.CAPTURED_EVENT
    assert code("cudaEventQuery", event) == Error.CAPTURED_EVENT
    assert code("cudaEventSynchronize", event) == Error.CAPTURED_EVENT
    assert code("cudaEventElapsedTime", ms, event, event) == Error.CAPTURED_EVENT
    begin(other)
    assert code("cudaStreamWaitEvent", other, event, 0) == Error.CAPTURED_EVENT
    assert end(other) == Error.INVALIDATED
    # Until it is recorded again.
    ok("cudaEventRecord", event, stream)
    ok("cudaEventSynchronize", event)
    ok("cudaStreamWaitEvent", other, event, 0)


@pytest.mark.parametrize("name", ["cudaEventQuery", "cudaEventSynchronize"])
@MODES
def test_a_look_at_a_captured_event_spoils_its_capture(
    things: Things, mode: int, name: str
) -> None:
    stream = things.stream()
    begin(stream, mode)
    assert code(name, things.recorded(stream)) == Error.CAPTURED_EVENT
    assert end(stream) == Error.INVALIDATED


def test_an_external_record_is_one_of_each_launch(things: Things) -> None:
    stream, log = things.stream(), Log()
    event = things.event()
    begin(stream)
    log.put(stream, "first")
    ok("cudaEventRecordWithFlags", event, stream, EXTERNAL)
    log.put(stream, "second")
    exec = things.exec(things.captured(stream))
    ok("cudaEventQuery", event)
    for n in (1, 2):
        gate = things.gate(stream)
        ok("cudaGraphLaunch", exec, stream)
        assert code("cudaEventQuery", event) == Error.NOT_READY
        gate.open()
        ok("cudaEventSynchronize", event)
        ok("cudaStreamSynchronize", stream)
        assert log == ["first", "second"] * n


def test_an_external_wait_is_for_what_is_recorded_at_the_launch(things: Things) -> None:
    stream, other, log = things.stream(), things.stream(), Log()
    event = things.event()
    begin(stream)
    ok("cudaStreamWaitEvent", stream, event, EXTERNAL)
    log.put(stream, "captured")
    exec = things.exec(things.captured(stream))
    ok("cudaGraphLaunch", exec, stream)
    ok("cudaStreamSynchronize", stream)
    gate = things.gate(other)
    log.put(other, "before")
    ok("cudaEventRecord", event, other)
    ok("cudaGraphLaunch", exec, stream)
    assert code("cudaStreamQuery", stream) == Error.NOT_READY
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert log == ["captured", "before", "captured"]


# What is forbidden


LOOKS: dict[str, Callable[[int], int]] = {
    "cudaStreamSynchronize": lambda stream: code("cudaStreamSynchronize", stream),
    "cudaStreamQuery": lambda stream: code("cudaStreamQuery", stream),
    "cudaDeviceSynchronize": lambda stream: code("cudaDeviceSynchronize"),
}


@MODES
@pytest.mark.parametrize("name", LOOKS)
def test_a_look_at_a_captured_stream_spoils_its_capture(
    things: Things, mode: int, name: str
) -> None:
    origin, other = things.stream(), things.stream()
    begin(origin, mode)
    fork(things, origin, other)
    assert LOOKS[name](other) == Error.UNSUPPORTED
    assert (status(origin), status(other)) == (INVALID, INVALID)
    for stream in (origin, other):
        assert put(stream, lambda: None) == Error.INVALIDATED
        assert code("cudaEventRecord", things.event(), stream) == Error.INVALIDATED
        assert code("cudaStreamQuery", stream) == Error.INVALIDATED
    assert end(origin) == Error.INVALIDATED
    assert status(other) == NONE
    ok("cudaStreamSynchronize", other)


def test_a_wait_for_an_event_of_a_spoilt_capture(things: Things) -> None:
    stream, other = things.stream(), things.stream()
    begin(stream)
    event = things.recorded(stream)
    assert code("cudaStreamQuery", stream) == Error.UNSUPPORTED
    assert code("cudaStreamWaitEvent", other, event, 0) == Error.INVALIDATED
    assert end(stream) == Error.INVALIDATED


LEGACY_USES: dict[str, Callable[[Things], int]] = {
    "work": lambda things: put(LEGACY, lambda: None),
    "work on 0": lambda things: put(0, lambda: None),
    "query": lambda things: code("cudaStreamQuery", LEGACY),
    "synchronize": lambda things: code("cudaStreamSynchronize", LEGACY),
    "record": lambda things: code("cudaEventRecord", things.event(), LEGACY),
    "wait": lambda things: code("cudaStreamWaitEvent", LEGACY, things.event(), 0),
    "host function": lambda things: code(
        "cudaLaunchHostFunc", LEGACY, function(lambda: None), None
    ),
}


@MODES
@pytest.mark.parametrize("use", LEGACY_USES)
def test_the_legacy_stream_is_unusable_beside_a_captured_blocking_one(
    things: Things, mode: int, use: str
) -> None:
    stream = things.stream(BLOCKING)
    begin(stream, mode)
    assert LEGACY_USES[use](things) == Error.IMPLICIT
    assert end(stream) == Error.INVALIDATED
    assert LEGACY_USES[use](things) in (0, Error.NOT_READY)


@pytest.mark.parametrize("use", ["work", "record", "wait", "host function"])
def test_the_legacy_stream_is_free_beside_a_captured_non_blocking_one(
    things: Things, use: str
) -> None:
    stream = things.stream(NON_BLOCKING)
    begin(stream)
    assert LEGACY_USES[use](things) == 0
    things.captured(stream)


@MODES
@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_a_synchronous_call_is_one_of_the_legacy_stream(
    things: Things, mode: int, flags: int
) -> None:
    memory, stream = made("cudaMalloc", 8), things.stream(flags)
    try:
        begin(stream, mode)
        got = code("cudaMemset", memory, 0, 8)
        if flags == NON_BLOCKING and mode == RELAXED:
            assert got == 0
            things.captured(stream)
        else:
            assert got == (Error.IMPLICIT if flags == BLOCKING else Error.UNSUPPORTED)
            assert end(stream) == Error.INVALIDATED
    finally:
        ok("cudaFree", memory)


def test_a_question_about_the_legacy_stream_spoils_nothing(things: Things) -> None:
    stream = things.stream(BLOCKING)
    begin(stream)
    state = ctypes.byref(ctypes.c_int())
    assert code("cudaStreamIsCapturing", LEGACY, state) == Error.IMPLICIT
    assert code(names(3)[0], LEGACY, state, *[None] * 5) == Error.IMPLICIT
    things.captured(stream)
    assert status(LEGACY) == NONE


@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_the_legacy_stream_cannot_be_drawn_in(things: Things, flags: int) -> None:
    stream = things.stream(flags)
    begin(stream)
    event = things.recorded(stream)
    assert code("cudaStreamWaitEvent", LEGACY, event, 0) == Error.IMPLICIT
    assert end(stream) == Error.INVALIDATED


def _captures_of_two_devices() -> None:
    with Things() as things:
        stream = things.stream(BLOCKING)
        begin(stream)
        ok("cudaSetDevice", 1)
        assert put(0, lambda: None) == 0
        other, log = things.stream(BLOCKING), Log()
        fork_event = made("cudaEventCreate")
        ok("cudaSetDevice", 0)
        fork(things, stream, other)
        log.put(other, "device 1")
        ok("cudaEventRecord", fork_event, other)
        ok("cudaStreamWaitEvent", stream, fork_event, 0)
        log.put(stream, "device 0")
        # Its legacy stream is unusable as well, now that a stream of it is captured.
        graph = things.captured(stream)
        run(things, graph)
        assert log == ["device 1", "device 0"]
        begin(stream)
        fork(things, stream, other)
        ok("cudaSetDevice", 1)
        assert put(0, lambda: None) == Error.IMPLICIT
        ok("cudaSetDevice", 0)
        assert end(stream) == Error.INVALIDATED
        begin(stream)
        ok("cudaSetDevice", 1)
        mode = ctypes.c_int(RELAXED)
        ok("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        ok("cudaDeviceSynchronize")
        ok("cudaSetDevice", 0)
        assert code("cudaDeviceSynchronize") == Error.UNSUPPORTED
        assert end(stream) == Error.INVALIDATED


def test_captures_of_two_devices() -> None:
    alone(_captures_of_two_devices, EMULATED_DEVICES="2")


# What is unsafe, by the modes of the thread and of the capture


UNSAFE: dict[str, Callable[[Things, int], int]] = {
    "cudaMalloc": lambda things, stream: code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), 8),
    "cudaEventQuery": lambda things, stream: code("cudaEventQuery", things.event()),
    "cudaEventSynchronize": lambda things, stream: code("cudaEventSynchronize", things.event()),
    "cudaStreamQuery": lambda things, stream: code("cudaStreamQuery", stream),
    "cudaStreamSynchronize": lambda things, stream: code("cudaStreamSynchronize", stream),
}


def with_mode(mode: int, call: Callable[[], int], function: str) -> int:
    """Make a call in a thread of another mode."""
    value = ctypes.c_int(mode)
    ok(function, ctypes.byref(value))
    assert value.value == GLOBAL, "not what threads begin with"
    try:
        return call()
    finally:
        ok(function, ctypes.byref(value))
        assert value.value == mode


EXCHANGES = pytest.mark.parametrize(
    "exchange", ["cudaThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode"]
)


@EXCHANGES
@pytest.mark.parametrize("of_thread", [GLOBAL, THREAD_LOCAL, RELAXED])
@MODES
def test_the_modes_say_what_the_capturing_thread_may_call(
    things: Things, mode: int, of_thread: int, exchange: str
) -> None:
    stream, other = things.stream(), things.stream()
    begin(stream, mode)
    got = with_mode(of_thread, lambda: UNSAFE["cudaStreamQuery"](things, other), exchange)
    if RELAXED in (mode, of_thread):
        assert got == 0
        things.captured(stream)
    else:
        assert got == Error.UNSUPPORTED
        assert end(stream) == Error.INVALIDATED


@pytest.mark.parametrize("of_thread", [GLOBAL, THREAD_LOCAL, RELAXED])
@MODES
def test_the_modes_say_what_other_threads_may_call(
    things: Things, mode: int, of_thread: int
) -> None:
    stream, other = things.stream(), things.stream()
    begin(stream, mode)
    exchange = "cudaThreadExchangeStreamCaptureMode"
    call = UNSAFE["cudaStreamQuery"]
    (got,) = in_thread(lambda: with_mode(of_thread, lambda: call(things, other), exchange))
    if (mode, of_thread) == (GLOBAL, GLOBAL):
        assert got == Error.UNSUPPORTED
        assert end(stream) == Error.INVALIDATED
    else:
        assert got == 0
        things.captured(stream)


def test_each_thread_has_a_mode_of_its_own(things: Things) -> None:
    stream, mode = things.stream(), ctypes.c_int(RELAXED)
    in_thread(lambda: ok("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode)))
    begin(stream)
    assert UNSAFE["cudaStreamQuery"](things, things.stream()) == Error.UNSUPPORTED
    assert end(stream) == Error.INVALIDATED


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_calls(things: Things, name: str) -> None:
    stream, other = things.stream(), things.stream()
    begin(stream, THREAD_LOCAL)
    assert UNSAFE[name](things, other) == Error.UNSUPPORTED
    assert end(stream) == Error.INVALIDATED
    assert UNSAFE[name](things, other) == 0


def test_modes_that_are_none(things: Things) -> None:
    for value in (-1, 3):
        mode = ctypes.byref(ctypes.c_int(value))
        assert code("cudaThreadExchangeStreamCaptureMode", mode) == Error.INVALID_VALUE
    assert code("cudaThreadExchangeStreamCaptureMode", None) == Error.INVALID_VALUE


# What a capture tells of itself


def names(version: int) -> tuple[str, str, bool]:
    """The names of two functions, and whether they have edges; CUDA 13 has one version of each."""
    info, update = "cudaStreamGetCaptureInfo", "cudaStreamUpdateCaptureDependencies"
    if number("cudaRuntimeGetVersion") >= 13000:
        return info, update, True
    if version == 3:
        return f"{info}_v3", f"{update}_v2", True
    return f"{info}_v2", update, False


class Info:
    """What cudaStreamGetCaptureInfo says."""

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
    # It is the capture's until the end.
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
    # A node that was taken out need not be joined.
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


# By CuPy


def test_a_capture_by_cupy(things: Things) -> None:
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.empty(100, "uint8")
        array.data.memset_async(1, array.nbytes)
        stream.begin_capture()
        assert stream.is_capturing()
        array.data.memset_async(2, array.nbytes)
        graph = stream.end_capture()
        assert (array.get() == 1).all()
        graph.launch()
        assert (array.get() == 2).all()
        del graph
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Unsupported"):
            cupy.cuda.runtime.malloc(512)
        with pytest.raises(RuntimeError, match="invalidated"):
            stream.is_capturing()
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="Invalidated"):
            stream.end_capture()
        array.data.memset_async(3, array.nbytes)
        assert (array.get() == 3).all()
    del stream
