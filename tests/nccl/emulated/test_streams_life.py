"""Layer 3b: creation and destruction of streams, and the ends of processes that have them."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    BLOCKING,
    LEGACY,
    LONG,
    NON_BLOCKING,
    PER_THREAD,
    Error,
    Gate,
    Log,
    Things,
    alone,
    code,
    made,
    number,
    ok,
    put,
    settled_threads,
)

# Creation and destruction


def test_what_a_stream_is_made_with_can_be_asked(things: Things) -> None:
    stream = things.stream(NON_BLOCKING)
    assert number("cudaStreamGetFlags", stream) == NON_BLOCKING
    assert number("cudaStreamGetPriority", stream) == 0
    assert number("cudaStreamGetFlags", things.stream(BLOCKING)) == BLOCKING
    handle = ctypes.c_void_p()
    assert code("cudaStreamCreateWithFlags", ctypes.byref(handle), 2) == Error.INVALID_VALUE
    assert code("cudaStreamCreate", None) == Error.INVALID_VALUE


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (3, 0), (-3, -3), (-100, -5)])
def test_a_priority_beyond_the_range_is_set_to_its_end(asked: int, got: int) -> None:
    least, greatest = ctypes.c_int(), ctypes.c_int()
    ok("cudaDeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert (least.value, greatest.value) == (0, -5)
    stream = made("cudaStreamCreateWithPriority", NON_BLOCKING, ctypes.c_int(asked))
    assert number("cudaStreamGetPriority", stream) == got
    ok("cudaStreamDestroy", stream)


@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_work_of_a_destroyed_stream_goes_on(things: Things, flags: int) -> None:
    stream, log = made("cudaStreamCreateWithFlags", flags), Log()
    gate = things.gate(stream)
    log.put(stream, "late")
    begin = time.monotonic()
    ok("cudaStreamDestroy", stream)
    assert time.monotonic() - begin < LONG / 2
    expected = Error.NOT_READY if flags == BLOCKING else Error.SUCCESS
    assert code("cudaStreamQuery", LEGACY) == expected
    gate.open_later()
    ok("cudaDeviceSynchronize")
    assert log == ["late"]


def test_a_thread_begins_with_the_first_work_and_ends_with_the_stream() -> None:
    before = settled_threads()
    stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
    assert control.count("threads") == before
    assert put(stream, lambda: None) == 0
    assert control.count("threads") == before + 1
    ok("cudaStreamDestroy", stream)
    assert settled_threads() == before


def test_a_handle_after_its_end_is_found_and_so_is_one_that_never_was(things: Things) -> None:
    stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
    ok("cudaStreamDestroy", stream)
    # The new stream must not get the old handle.
    things.stream()
    event = things.event()
    for handle, error in ((stream, Error.DESTROYED), (0x5EED, Error.INVALID_HANDLE)):
        assert code("cudaStreamDestroy", handle) == error
        assert code("cudaStreamQuery", handle) == error
        assert code("cudaStreamSynchronize", handle) == error
        assert code("cudaEventRecord", event, handle) == error
        assert code("cudaStreamWaitEvent", handle, event, 0) == error
        assert put(handle, lambda: None) == error
        assert code("emulated_stream_device", handle) == -1


@pytest.mark.parametrize("default", [0, LEGACY, PER_THREAD])
def test_the_default_streams_cannot_be_destroyed(default: int) -> None:
    assert code("cudaStreamDestroy", default) == Error.INVALID_HANDLE
    ok("cudaStreamSynchronize", default)


# Processes


def _a_fork() -> None:
    stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
    gate = Gate(stream)
    gate.begun()
    child = os.fork()
    if not child:
        asked = ("cudaStreamSynchronize", "cudaStreamQuery", "cudaStreamDestroy")
        codes = [code(name, stream) for name in asked]
        codes.append(code("cudaDeviceSynchronize"))
        print(codes, flush=True)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    gate.open()
    ok("cudaStreamSynchronize", stream)


def test_a_fork_is_told_that_it_has_no_device() -> None:
    assert alone(_a_fork) == f"{[int(Error.INITIALIZATION)] * 4}\n"


def _a_fork_before_any_use() -> None:
    number("cudaRuntimeGetVersion")
    child = os.fork()
    if not child:
        stream = made("cudaStreamCreateWithFlags", NON_BLOCKING)
        ok("cudaStreamSynchronize", stream)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_a_fork_of_what_has_not_used_the_device_has_one() -> None:
    alone(_a_fork_before_any_use)


def _an_end_with_work_pending() -> None:
    for flags in (BLOCKING, NON_BLOCKING):
        stream = made("cudaStreamCreateWithFlags", flags)
        Gate(stream).begun()
        Log().put(stream, "never")
    Log().put(LEGACY, "never")


def test_a_process_ends_though_work_is_pending() -> None:
    begin = time.monotonic()
    alone(_an_end_with_work_pending)
    assert time.monotonic() - begin < LONG
