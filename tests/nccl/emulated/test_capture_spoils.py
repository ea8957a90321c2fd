"""Layer 3b: calls that a capture forbids, and calls that invalidate it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tests.nccl.emulated.calls import (
    BLOCKING,
    LEGACY,
    NON_BLOCKING,
    Error,
    Log,
    Things,
    alone,
    code,
    function,
    made,
    ok,
    put,
)
from tests.nccl.emulated.captures import (
    INVALID,
    MODES,
    NONE,
    RELAXED,
    begin,
    end,
    fork,
    names,
    run,
    status,
)

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
        # The device's legacy stream is unusable, too, while one of its streams is captured.
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
