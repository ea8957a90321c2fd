"""Layer 3b: the delay until small work runs, a wait ends and the work's objects are released."""

from __future__ import annotations

import ctypes
import time

import pytest

from tests.nccl.emulated.calls import FUNCTION, LONG, Things, code, function, ok


def enqueue_c(stream: int, name: str, argument: int) -> None:
    """Put a function of the C library on a stream: Python's lock does not affect its time."""
    run = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    ok("emulated_enqueue", stream, run, argument, None)


def test_small_work_takes_microseconds(things: Things) -> None:
    stream, begin = things.stream(), time.perf_counter()
    for _ in range(10_000):
        enqueue_c(stream, "abs", 1)
    ok("cudaStreamSynchronize", stream)
    assert time.perf_counter() - begin < 3


@pytest.mark.parametrize("of_event", [False, True])
def test_a_wait_of_the_host_ends_with_the_work(things: Things, of_event: bool) -> None:
    stream, event, least = things.stream(), things.event(), LONG
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(20):
            enqueue_c(stream, "usleep", 300)
            ok("cudaEventRecord", event, stream)
            if of_event:
                ok("cudaEventSynchronize", event)
            else:
                ok("cudaStreamSynchronize", stream)
        least = min(least, time.perf_counter() - begin)
    assert least < 20 * 0.003, "it looks only now and then"


def test_what_work_holds_is_released_once_it_has_run(things: Things) -> None:
    stream, released = things.stream(), list[int]()
    release = FUNCTION(lambda data: released.append(data))
    ok("emulated_enqueue", stream, function(lambda: None), 5, release)
    ok("cudaStreamSynchronize", stream)
    assert released == [5]
    assert code("emulated_enqueue", 0x5EED, function(lambda: None), 6, release)
    assert released == [5, 6]
