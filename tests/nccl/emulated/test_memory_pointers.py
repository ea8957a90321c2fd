"""Layer 3b: host memory, and the owner of the memory at a pointer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, alone, code, made, ok
from tests.nccl.emulated.memory import (
    DEVICE,
    HOST,
    MANAGED,
    POISON,
    UNREGISTERED,
    attributes,
    contents,
)

pytestmark = pytest.mark.usefixtures("all_is_freed")


@pytest.fixture
def memory() -> Iterator[int]:
    """Return memory of a device, 1000 bytes."""
    pointer = made("cudaMalloc", 1000)
    yield pointer
    ok("cudaFree", pointer)


# Memory of the host


def test_pinned_memory_is_the_hosts() -> None:
    pinned = made("cudaHostAlloc", 1000, 0)
    assert ctypes.string_at(pinned, 1000) == bytes([POISON]) * 1000
    ctypes.memset(pinned, 9, 1000)
    assert attributes(pinned + 5) == (HOST, 0, pinned + 5, pinned + 5)
    assert made("cudaHostGetDevicePointer", pinned, 0) == pinned
    ok("cudaFreeHost", pinned)
    assert attributes(pinned)[0] == UNREGISTERED
    pointer = ctypes.c_void_p()
    assert code("cudaHostAlloc", ctypes.byref(pointer), 64, 1024) == Error.INVALID_VALUE


def test_managed_memory_is_everybodys() -> None:
    pointer = made("cudaMallocManaged", 1000, 1)
    ctypes.memset(pointer, 9, 1000)
    assert contents(pointer, 1000) == b"\t" * 1000
    assert attributes(pointer) == (MANAGED, 0, pointer, pointer)
    assert (
        control.library().emulated_memory_device(ctypes.c_void_p(pointer), ctypes.c_size_t(1000))
        == 0
    )
    ok("cudaFree", pointer)
    nothing = ctypes.c_void_p()
    assert code("cudaMallocManaged", ctypes.byref(nothing), 0, 1) == Error.INVALID_VALUE
    assert code("cudaMallocManaged", ctypes.byref(nothing), 9, 9) == Error.INVALID_VALUE


def test_memory_of_the_host_is_registered_once() -> None:
    buffer = ctypes.create_string_buffer(1000)
    start = ctypes.addressof(buffer)
    ok("cudaHostRegister", start, 1000, 0)
    assert attributes(start + 999)[0] == HOST
    assert attributes(start + 1000)[0] == UNREGISTERED
    for begin, size in ((start, 1000), (start + 500, 1000), (start - 10, 20), (start + 1, 1)):
        assert code("cudaHostRegister", begin, size, 0) == Error.ALREADY_REGISTERED
    assert code("cudaHostUnregister", start + 1) == Error.NOT_REGISTERED
    ok("cudaHostUnregister", start)
    assert code("cudaHostUnregister", start) == Error.NOT_REGISTERED
    assert code("cudaHostRegister", start, 0, 0) == Error.INVALID_VALUE
    assert code("cudaHostRegister", None, 10, 0) == Error.INVALID_VALUE
    assert attributes(start)[0] == UNREGISTERED


def test_pinned_memory_is_neither_registered_nor_unregistered() -> None:
    pinned = made("cudaMallocHost", 64)
    assert code("cudaHostRegister", pinned, 64, 0) == Error.ALREADY_REGISTERED
    assert code("cudaHostUnregister", pinned) == Error.NOT_REGISTERED
    ok("cudaFreeHost", pinned)


# The owner of the memory at a pointer


def test_pointers_tell_whose_memory_it_is(memory: int) -> None:
    assert attributes(memory + 999) == (DEVICE, 0, memory + 999, None)
    invalid = -2
    assert attributes(memory + 1000) == (UNREGISTERED, invalid, None, memory + 1000)
    buffer = ctypes.create_string_buffer(8)
    address = ctypes.addressof(buffer)
    assert attributes(address) == (UNREGISTERED, invalid, None, address)


def test_a_range_lies_within_one_block(memory: int) -> None:
    def device(pointer: int, size: int) -> int:
        where = ctypes.c_void_p(pointer)
        return int(control.library().emulated_memory_device(where, ctypes.c_size_t(size)))

    assert device(memory, 1000) == device(memory + 999, 1) == 0
    assert device(memory, 1001) == device(memory - 1, 2) == device(memory + 1000, 1) == -1
    begin, size = ctypes.c_uint64(), ctypes.c_size_t()
    ok("cuMemGetAddressRange_v2", ctypes.byref(begin), ctypes.byref(size), memory + 500)
    assert (begin.value, size.value) == (memory, 1000)
    got = code("cuMemGetAddressRange_v2", ctypes.byref(begin), ctypes.byref(size), 64)
    assert got == Error.NOT_FOUND


def test_the_driver_tells_the_same(memory: int) -> None:
    memory_type, pointer, ordinal, begin, size = 2, 3, 9, 11, 12
    expected = {memory_type: DEVICE, pointer: memory + 7, ordinal: 0, begin: memory, size: 1000}
    for attribute, value in expected.items():
        got = ctypes.c_uint64()
        ok("cuPointerGetAttribute", ctypes.byref(got), attribute, memory + 7)
        assert got.value == value
    host_pointer = 4
    answer = ctypes.c_uint64()
    where = ctypes.byref(answer)
    assert code("cuPointerGetAttribute", where, host_pointer, memory) == Error.INVALID_VALUE
    assert code("cuPointerGetAttribute", where, memory_type, 64) == Error.INVALID_VALUE


def looks_from_another_device() -> None:
    pointer = made("cudaMalloc", 64)
    ok("cudaSetDevice", 1)
    assert attributes(pointer) == (DEVICE, 0, None, None)
    ok("cudaDeviceEnablePeerAccess", 0, 0)
    assert attributes(pointer) == (DEVICE, 0, pointer, None)
    ok("cudaFree", pointer)


def test_another_device_has_an_address_for_it_once_it_may_touch_it() -> None:
    alone(looks_from_another_device, EMULATED_DEVICES="2")
