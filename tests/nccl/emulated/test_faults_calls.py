"""Layer 3b: injected errors of calls, and counts of calls and live objects."""

from __future__ import annotations

import ctypes

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, code, last, made, number, ok

# Injected errors


def test_the_nth_call_fails_and_no_other() -> None:
    control.fail("cudaDeviceSynchronize", 3, Error.LAUNCH_FAILURE)
    assert [code("cudaDeviceSynchronize") for _ in range(5)] == [0, 0, 719, 0, 0]
    last()


def test_each_call_from_the_nth_on_fails_until_it_is_taken_back() -> None:
    control.fail("cudaDeviceSynchronize", -2, Error.OUT_OF_MEMORY)
    assert [code("cudaDeviceSynchronize") for _ in range(4)] == [0, 2, 2, 2]
    control.fail("cudaDeviceSynchronize", 0, 0)
    ok("cudaDeviceSynchronize")
    last()


def test_a_call_that_fails_does_nothing() -> None:
    before = control.count("device_blocks")
    with control.failing("cudaMalloc", 1, Error.OUT_OF_MEMORY):
        pointer = ctypes.c_void_p(7)
        assert code("cudaMalloc", ctypes.byref(pointer), 64) == Error.OUT_OF_MEMORY
    assert (pointer.value, control.count("device_blocks")) == (7, before)
    last()


def test_calls_are_counted() -> None:
    before = control.calls("cudaGetDevice")
    for _ in range(3):
        number("cudaGetDevice")
    assert control.calls("cudaGetDevice") == before + 3
    assert control.calls("cudaNeverCalled") == 0


def test_cupy_tells_an_injected_error_in_cudas_words() -> None:
    import cupy

    control.fail("cudaMalloc", 1, Error.ILLEGAL_ADDRESS)
    words = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=words):
        cupy.cuda.runtime.malloc(64)
    cupy.cuda.runtime.free(cupy.cuda.runtime.malloc(64))


# Counts of live objects


def test_live_memory_is_counted() -> None:
    before = control.counts()
    memory, pinned = made("cudaMalloc", 1000), made("cudaMallocHost", 10)
    after = control.counts()
    assert {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]} == {
        "device_blocks": 1,
        "device_bytes": 1000,
        "pinned_blocks": 1,
        "pinned_bytes": 10,
    }
    ok("cudaFree", memory)
    ok("cudaFreeHost", pinned)
    assert control.counts() == before


def test_a_count_of_no_kind_is_negative() -> None:
    count = control.library().emulated_count
    count.restype = ctypes.c_long
    assert (count(-1), count(len(control.KINDS))) == (-1, -1)
