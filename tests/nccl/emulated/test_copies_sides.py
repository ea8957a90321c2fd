"""Layer 3b: allowed sources and targets of copies, one-dimensional and in rows."""

from __future__ import annotations

import ctypes

import pytest

from tests.nccl.emulated.calls import Error, code, made, ok
from tests.nccl.emulated.sides import (
    DEFAULT,
    HOST_TO_HOST,
    SIZE,
    TO_DEVICE,
    TO_HOST,
    WITHIN_DEVICE,
    Memory,
)

# Allowed sources and targets

ALLOWED = {
    HOST_TO_HOST: ({"pageable", "pinned", "managed"}, {"pageable", "pinned", "managed"}),
    TO_DEVICE: ({"pinned", "managed", "device"}, {"pageable", "pinned", "managed"}),
    TO_HOST: ({"pageable", "pinned", "managed"}, {"pinned", "managed", "device"}),
    WITHIN_DEVICE: ({"pinned", "managed", "device"}, {"pinned", "managed", "device"}),
    DEFAULT: ({"pageable", "pinned", "managed", "device"},) * 2,
}
"""Sources and targets of each kind of copy."""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kind", ALLOWED)
@pytest.mark.parametrize("source", ["other_pageable", "other_pinned", "managed", "other_device"])
@pytest.mark.parametrize("target", ["pageable", "pinned", "device"])
def test_a_copy_goes_where_its_kind_says(
    memory: Memory, target: str, source: str, kind: int, asynchronous: bool
) -> None:
    memory.set(target, 1)
    memory.set(source, 2)
    targets, sources = ALLOWED[kind]
    allowed = target in targets and source.removeprefix("other_") in sources
    arguments = (memory[target], memory[source], SIZE, kind)
    if asynchronous:
        got = code("cudaMemcpyAsync", *arguments, None)
        ok("cudaStreamSynchronize", None)
    else:
        got = code("cudaMemcpy", *arguments)
    assert got == (0 if allowed else Error.INVALID_VALUE)
    assert memory.get(target) == bytes([2 if allowed else 1]) * SIZE


@pytest.mark.parametrize("target", [True, False])
def test_a_copy_stays_within_its_blocks(memory: Memory, target: bool) -> None:
    def copy(at: int, size: int) -> int:
        pointers = (at, memory.pageable) if target else (memory.pageable, at)
        return code("cudaMemcpy", *pointers, size, DEFAULT)

    assert copy(memory.device + 500, 500) == 0
    assert copy(memory.device + 500, 501) == Error.INVALID_VALUE
    assert copy(memory.device - 1, 10) == Error.INVALID_VALUE
    assert copy(memory.device - 1, 1) == copy(memory.device + SIZE, 1) == Error.INVALID_VALUE
    assert copy(memory.pinned + 500, 501) == Error.INVALID_VALUE
    page = 4096
    assert copy(memory.device - page, 1) == Error.INVALID_VALUE
    assert copy(memory.device - 3 * page, 3 * page + 1) == Error.INVALID_VALUE


def test_memory_of_a_copy_is_registered_throughout_or_not_at_all() -> None:
    buffer, source = ctypes.create_string_buffer(3000), made("cudaMalloc", 3000)
    start = ctypes.addressof(buffer)
    ok("cudaHostRegister", start + 1000, 1000, 0)
    for begin, size, expected in (
        (0, 1000, 0),
        (0, 1001, Error.INVALID_VALUE),
        (1000, 1000, 0),
        (1999, 2, Error.INVALID_VALUE),
        (2000, 1000, 0),
        (0, 3000, Error.INVALID_VALUE),
    ):
        assert code("cudaMemcpy", start + begin, source, size, DEFAULT) == expected
    ok("cudaHostUnregister", start + 1000)
    ok("cudaFree", source)


def test_other_kinds_and_no_memory_are_refused(memory: Memory) -> None:
    for kind in (-1, 5):
        got = code("cudaMemcpy", memory.device, memory.pageable, 8, ctypes.c_int(kind))
        assert got == Error.INVALID_DIRECTION
    assert code("cudaMemcpy", None, memory.pageable, 8, DEFAULT) == Error.INVALID_VALUE
    assert code("cudaMemcpy", memory.device, None, 8, DEFAULT) == Error.INVALID_VALUE
    got = code("cudaMemcpyAsync", memory.device, memory.pageable, 8, DEFAULT, 4711)
    assert got == Error.INVALID_HANDLE
    assert code("cudaMemcpyAsync", None, None, 0, DEFAULT, 4711) == Error.INVALID_HANDLE
    ok("cudaMemcpy", None, None, 0, DEFAULT)
    ok("cudaMemcpyAsync", None, None, 0, DEFAULT, None)


# Copies of rows


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("source", ["pageable", "pinned"])
def test_rows_are_copied_by_their_pitches(memory: Memory, source: str, asynchronous: bool) -> None:
    memory.set("device", 0)
    pattern = bytes(range(60))
    ctypes.memmove(memory[source], pattern, 60)
    arguments = [memory.device, 10, memory[source], 20, 5, 3]
    wide = [ctypes.c_size_t(argument) for argument in arguments]
    if asynchronous:
        ok("cudaMemcpy2DAsync", *wide, TO_DEVICE, None)
    else:
        ok("cudaMemcpy2D", *wide, TO_DEVICE)
    ok("cudaDeviceSynchronize")
    expected = b"".join(pattern[row * 20 : row * 20 + 5] + bytes(5) for row in range(3))
    assert memory.get("device")[:30] == expected


def test_rows_are_no_wider_than_their_pitch_and_stay_within_their_blocks(memory: Memory) -> None:
    def copy(to_pitch: int, from_pitch: int, width: int, height: int) -> int:
        arguments = [memory.device, to_pitch, memory.pageable, from_pitch, width, height]
        return code("cudaMemcpy2D", *map(ctypes.c_size_t, arguments), TO_DEVICE)

    assert copy(100, 10, 10, 10) == 0
    assert copy(9, 10, 10, 10) == Error.INVALID_PITCH
    assert copy(10, 9, 10, 10) == Error.INVALID_PITCH
    assert copy(110, 10, 10, 10) == 0
    assert copy(111, 10, 10, 10) == Error.INVALID_VALUE
    assert copy(100, 10, 10, 0) == 0
