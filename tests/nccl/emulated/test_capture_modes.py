"""Layer 3b: calls that are unsafe during a capture, by the modes of the thread and the capture."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tests.nccl.emulated.calls import Error, Things, code, ok
from tests.nccl.emulated.captures import GLOBAL, MODES, RELAXED, THREAD_LOCAL, begin, end, in_thread

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
