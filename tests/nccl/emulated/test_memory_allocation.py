"""Layer 3b: memory that is allocated, freed, poisoned and exhausted."""

from __future__ import annotations

import ctypes
import threading

import pytest

from tests.nccl.emulated.calls import Error, Things, alone, code, ended, made, ok, put
from tests.nccl.emulated.memory import POISON, contents

pytestmark = pytest.mark.usefixtures("all_is_freed")


def info() -> tuple[int, int]:
    """Return the free and the total memory."""
    available, whole = ctypes.c_size_t(), ctypes.c_size_t()
    ok("cudaMemGetInfo", ctypes.byref(available), ctypes.byref(whole))
    return available.value, whole.value


@pytest.mark.parametrize("size", [1, 1000, 4096, 5 << 20, (9 << 20) + 1])
def test_fresh_memory_is_poisoned_throughout(size: int) -> None:
    pointer = made("cudaMalloc", size)
    assert contents(pointer, size) == bytes([POISON]) * size
    ok("cudaMemset", pointer, 7, ctypes.c_size_t(size))
    assert contents(pointer, size) == bytes([7]) * size
    ok("cudaFree", pointer)


def test_fresh_memory_is_poisoned_where_memory_was_freed() -> None:
    for _ in range(20):
        pointer = made("cudaMalloc", 4096)
        assert contents(pointer, 4096) == bytes([POISON]) * 4096
        ok("cudaMemset", pointer, 7, ctypes.c_size_t(4096))
        ok("cudaFree", pointer)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 4096, 100_000])
def test_memory_is_aligned(size: int) -> None:
    pointer = made("cudaMalloc", size)
    assert pointer % 512 == 0
    ok("cudaFree", pointer)


def test_no_bytes_have_no_address() -> None:
    assert made("cudaMalloc", 0) == 0
    assert made("cudaMallocHost", 0) == 0
    ok("cudaFree", None)
    ok("cudaFreeHost", None)


def test_memory_is_freed_once_and_by_its_own_function() -> None:
    pointer, pinned = made("cudaMalloc", 64), made("cudaMallocHost", 64)
    assert code("cudaFreeHost", pointer) == Error.INVALID_VALUE
    assert code("cudaFree", pinned) == Error.INVALID_VALUE
    assert code("cudaFree", pointer + 8) == Error.INVALID_VALUE
    ok("cudaFree", pointer)
    ok("cudaFreeHost", pinned)
    assert code("cudaFree", pointer) == Error.INVALID_VALUE
    assert code("cudaFreeHost", pinned) == Error.INVALID_VALUE
    foreign = ctypes.create_string_buffer(64)
    assert code("cudaFree", ctypes.addressof(foreign)) == Error.INVALID_VALUE


def test_a_free_waits_for_all_work_of_the_device(things: Things) -> None:
    stream, pointer, done = things.stream(), made("cudaMalloc", 64), []
    gate = things.gate(stream)
    assert put(stream, lambda: done.append("work")) == 0
    thread = threading.Thread(target=ok, args=("cudaFree", pointer))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    gate.open()
    thread.join(20)
    assert done == ["work"]


def uses_up_a_device() -> None:
    mib = 1 << 20
    assert info() == (8 * mib, 8 * mib)
    first = made("cudaMalloc", 5 * mib)
    assert info() == (3 * mib, 8 * mib)
    pointer = ctypes.c_void_p(7)
    assert code("cudaMalloc", ctypes.byref(pointer), 4 * mib) == Error.OUT_OF_MEMORY
    assert pointer.value is None
    # The error is not sticky, and other devices have their own memory.
    second = made("cudaMalloc", 3 * mib)
    ok("cudaSetDevice", 1)
    third = made("cudaMalloc", 8 * mib)
    assert info()[0] == 0
    for taken in (first, second, third):
        ok("cudaFree", taken)
    assert info()[0] == 8 * mib
    ok("cudaSetDevice", 0)
    assert info()[0] == 8 * mib
    # Pinned memory is host memory.
    ok("cudaFreeHost", made("cudaMallocHost", 20 * mib))


def test_a_device_has_as_much_memory_as_the_environment_says() -> None:
    alone(uses_up_a_device, EMULATED_MEMORY="8", EMULATED_DEVICES="2")


def runs_out_in_cupy() -> None:
    import cupy

    try:
        cupy.empty(16 << 20, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError as error:
        print(error)
    print(cupy.zeros(5, dtype=cupy.uint8).nbytes)


def test_cupy_tells_that_memory_has_run_out_and_goes_on() -> None:
    words, size = alone(runs_out_in_cupy, EMULATED_MEMORY="8").splitlines()
    assert words.startswith("Out of memory allocating 16,777,216 bytes")
    assert size == "5"


@pytest.mark.parametrize("size", ["0", "-1", "much"])
def test_a_size_that_is_none_ends_the_process_in_words(size: str) -> None:
    process = ended(uses_up_a_device, EMULATED_MEMORY=size)
    assert process.returncode == 2
    assert f"EMULATED_MEMORY is '{size}', no number of MiB" in process.stderr
