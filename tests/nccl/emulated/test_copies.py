"""Copies and fills of the emulated runtime: what they do, and when the host goes on."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from mmap import mmap

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    BLOCKING,
    LONG,
    Error,
    Gate,
    Log,
    Things,
    alone,
    code,
    ended,
    made,
    ok,
    put,
)

HOST_TO_HOST, TO_DEVICE, TO_HOST, WITHIN_DEVICE, DEFAULT = range(5)
SIZE = 1000
SOON = 0.15
"""Seconds in which a call that does not wait would most likely return."""


class Memory:
    """Memory of each kind, 1000 bytes, that begins with a byte of its own."""

    def __init__(self) -> None:
        self._kept = [ctypes.create_string_buffer(SIZE) for _ in range(2)]
        self.pageable, self.other_pageable = map(ctypes.addressof, self._kept)
        self.pinned, self.other_pinned = (made("cudaMallocHost", SIZE) for _ in range(2))
        self.device, self.other_device = (made("cudaMalloc", SIZE) for _ in range(2))
        self.managed = made("cudaMallocManaged", SIZE, 1)

    def free(self) -> None:
        for pinned in (self.pinned, self.other_pinned):
            ok("cudaFreeHost", pinned)
        for memory in (self.device, self.other_device, self.managed):
            ok("cudaFree", memory)

    def __getitem__(self, name: str) -> int:
        return int(getattr(self, name))

    def is_of_device(self, name: str) -> bool:
        return name.endswith("device")

    def set(self, name: str, byte: int) -> None:
        if self.is_of_device(name):
            ok("cudaMemset", self[name], byte, SIZE)
            ok("cudaDeviceSynchronize")
        else:
            ctypes.memset(self[name], byte, SIZE)

    def get(self, name: str) -> bytes:
        if not self.is_of_device(name):
            return ctypes.string_at(self[name], SIZE)
        taken = ctypes.create_string_buffer(SIZE)
        ok("cudaMemcpy", taken, self[name], SIZE, TO_HOST)
        return taken.raw


@pytest.fixture
def memory() -> Iterator[Memory]:
    made_here = Memory()
    yield made_here
    ok("cudaDeviceSynchronize")
    code("cudaGetLastError")
    made_here.free()


def started(call: Callable[[], object], waits: bool) -> threading.Thread:
    """Make a call on a thread of its own, and see that it waits or returns."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(SOON if waits else LONG / 2)
    assert thread.is_alive() == waits
    return thread


# What may be copied where

ALLOWED = {
    HOST_TO_HOST: ({"pageable", "pinned", "managed"}, {"pageable", "pinned", "managed"}),
    TO_DEVICE: ({"pinned", "managed", "device"}, {"pageable", "pinned", "managed"}),
    TO_HOST: ({"pageable", "pinned", "managed"}, {"pinned", "managed", "device"}),
    WITHIN_DEVICE: ({"pinned", "managed", "device"}, {"pinned", "managed", "device"}),
    DEFAULT: ({"pageable", "pinned", "managed", "device"},) * 2,
}
"""Where to and where from each kind of copy goes."""


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


# When the host goes on


@pytest.mark.parametrize(
    ("target", "source", "waits"),
    [
        ("device", "pageable", False),
        ("device", "pinned", False),
        ("pinned", "device", False),
        ("device", "other_device", False),
        ("device", "managed", False),
        ("managed", "device", False),
        ("pageable", "device", True),
        ("pinned", "other_pinned", True),
        ("pageable", "pinned", True),
        ("pinned", "pageable", True),
        ("pageable", "other_pageable", True),
    ],
)
def test_an_asynchronous_copy_waits_for_pageable_memory_and_within_the_host(
    things: Things, memory: Memory, target: str, source: str, waits: bool
) -> None:
    memory.set(target, 1)
    memory.set(source, 2)
    stream = things.stream()
    gate = things.gate(stream)
    arguments = (memory[target], memory[source], SIZE, DEFAULT, stream)
    thread = started(lambda: ok("cudaMemcpyAsync", *arguments), waits)
    gate.open()
    thread.join(20)
    if not waits:
        ok("cudaStreamSynchronize", stream)
    assert memory.get(target) == b"\2" * SIZE


@pytest.mark.parametrize(("source", "seen"), [("pageable", 2), ("pinned", 3)])
def test_pageable_memory_is_staged_and_pinned_memory_is_read_by_the_copy(
    things: Things, memory: Memory, source: str, seen: int
) -> None:
    memory.set(source, 2)
    stream = things.stream()
    gate = things.gate(stream)
    ok("cudaMemcpyAsync", memory.device, memory[source], SIZE, TO_DEVICE, stream)
    memory.set(source, 3)
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert memory.get("device") == bytes([seen]) * SIZE


def test_a_copy_is_done_in_the_order_of_its_stream(things: Things, memory: Memory) -> None:
    stream, order = things.stream(), []
    memory.set("device", 1)
    memory.set("pinned", 2)
    where = memory.device
    assert put(stream, lambda: order.append(ctypes.string_at(where, 1))) == 0
    ok("cudaMemcpyAsync", where, memory.pinned, SIZE, TO_DEVICE, stream)
    assert put(stream, lambda: order.append(ctypes.string_at(where, 1))) == 0
    ok("cudaMemsetAsync", where, 3, SIZE, stream)
    assert put(stream, lambda: order.append(ctypes.string_at(where, 1))) == 0
    ok("cudaStreamSynchronize", stream)
    assert order == [b"\1", b"\2", b"\3"]


@pytest.mark.parametrize(
    ("target", "source", "waits"),
    [
        ("device", "other_device", False),
        ("device", "pinned", True),
        ("device", "pageable", True),
        ("pinned", "device", True),
        ("pageable", "device", True),
        ("pinned", "other_pinned", True),
    ],
)
def test_a_copy_runs_on_the_legacy_stream_and_waits_but_between_devices(
    things: Things, memory: Memory, target: str, source: str, waits: bool
) -> None:
    memory.set(target, 1)
    memory.set(source, 2)
    gate = things.gate(things.stream(BLOCKING))
    arguments = (memory[target], memory[source], SIZE, DEFAULT)
    thread = started(lambda: ok("cudaMemcpy", *arguments), waits)
    gate.open()
    thread.join(20)
    ok("cudaDeviceSynchronize")
    assert memory.get(target) == b"\2" * SIZE


def test_a_copy_from_pageable_memory_may_arrive_after_it_returns() -> None:
    size = 64 << 20
    source, target = ctypes.create_string_buffer(size), made("cudaMalloc", size)
    ok("cudaMemcpy", target, source, ctypes.c_size_t(size), TO_DEVICE)
    assert code("cudaStreamQuery", None) == Error.NOT_READY
    ok("cudaFree", target)


@pytest.mark.parametrize(("target", "waits"), [("device", False), ("pinned", True)])
def test_a_fill_waits_for_memory_of_the_host(
    things: Things, memory: Memory, target: str, waits: bool
) -> None:
    gate = things.gate(things.stream(BLOCKING))
    thread = started(lambda: ok("cudaMemset", memory[target], 5, SIZE), waits)
    gate.open()
    thread.join(20)
    ok("cudaDeviceSynchronize")
    assert memory.get(target) == b"\5" * SIZE


def test_a_fill_stays_within_its_block(memory: Memory) -> None:
    assert code("cudaMemset", memory.device + 1, 0, SIZE) == Error.INVALID_VALUE
    assert code("cudaMemset", memory.pageable, 0, SIZE) == Error.INVALID_VALUE
    assert code("cudaMemsetAsync", memory.device, 0, 8, 4711) == Error.INVALID_HANDLE
    ok("cudaMemset", None, 0, 0)


def loses_its_device_before_a_copy() -> None:
    memory, stream = Memory(), made("cudaStreamCreateWithFlags", 1)
    memory.set("pinned", 1)
    control.stop(0)
    ok("cudaMemcpyAsync", memory.pinned, memory.device, SIZE, TO_HOST, stream)
    control.fail("cudaFree", 1, Error.LAUNCH_FAILURE, sticky=True)
    assert code("cudaFree", None) == Error.LAUNCH_FAILURE
    control.go_on(0)
    time.sleep(SOON)
    assert memory.get("pinned") == b"\1" * SIZE


def test_nothing_is_copied_on_a_lost_device() -> None:
    alone(loses_its_device_before_a_copy)


def copies_memory_that_is_gone() -> None:
    stream, pointer = made("cudaStreamCreateWithFlags", 1), made("cudaMalloc", SIZE)
    area = mmap(-1, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    ok("cudaHostRegister", address, SIZE, 0)
    gate = Gate(stream)
    ok("cudaMemcpyAsync", pointer, address, SIZE, TO_DEVICE, stream)
    assert ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(SIZE)) == 0
    gate.open()
    assert code("cudaStreamSynchronize", stream) == Error.ILLEGAL_ADDRESS
    assert code("cudaFree", pointer) == Error.ILLEGAL_ADDRESS
    print("lost", flush=True)
    os._exit(0)


def test_a_copy_of_memory_that_is_gone_loses_the_device() -> None:
    process = ended(copies_memory_that_is_gone)
    assert process.stdout == "lost\n", process.stderr
    assert "emulated: a copy touched an illegal address" in process.stderr


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


# Copies between devices


def copies_between_devices() -> None:
    ok("cudaSetDevice", 1)
    there = made("cudaMalloc", SIZE)
    stream = made("cudaStreamCreateWithFlags", 1)
    ok("cudaMemset", there, 9, SIZE)
    ok("cudaDeviceSynchronize")
    ok("cudaSetDevice", 0)
    memory = Memory()
    memory.set("device", 1)
    ok("cudaMemcpyPeerAsync", memory.device, 0, there, 1, ctypes.c_size_t(SIZE), stream)
    ok("cudaStreamSynchronize", stream)
    assert memory.get("device") == b"\t" * SIZE
    memory.set("device", 1)
    ok("cudaMemcpyPeer", memory.device, 0, there, 1, ctypes.c_size_t(SIZE))
    assert memory.get("device") == b"\t" * SIZE
    for to, source in ((1, 1), (0, 0)):
        got = code("cudaMemcpyPeer", memory.device, to, there, source, ctypes.c_size_t(8))
        assert got == Error.INVALID_VALUE
    got = code("cudaMemcpyPeer", memory.device, 0, there, 2, ctypes.c_size_t(8))
    assert got == Error.INVALID_DEVICE
    # A copy needs no stream of either device.
    ok("cudaMemcpyAsync", there, memory.device, 8, WITHIN_DEVICE, stream)
    ok("cudaStreamSynchronize", stream)


def test_copies_go_between_devices() -> None:
    alone(copies_between_devices, EMULATED_DEVICES="2")


def copies_while_the_other_device_works() -> None:
    there = made("cudaMalloc", SIZE)
    ok("cudaSetDevice", 1)
    here, stream = made("cudaMalloc", SIZE), made("cudaStreamCreateWithFlags", 1)
    log = Log()
    ok("cudaSetDevice", 0)
    assert put(stream, lambda: time.sleep(SOON)) == 0
    log.put(stream, "work")
    ok("cudaMemcpyPeer", there, 0, here, 1, ctypes.c_size_t(SIZE))
    assert log == ["work"]


def test_a_copy_between_devices_waits_for_all_work_of_both() -> None:
    alone(copies_while_the_other_device_works, EMULATED_DEVICES="2")


# Captures


@pytest.mark.parametrize("name", ["cudaMemcpy", "cudaMemset"])
def test_a_capture_forbids_what_waits(things: Things, memory: Memory, name: str) -> None:
    stream, graph = things.stream(), ctypes.c_void_p()
    ok("cudaStreamBeginCapture", stream, 0)
    if name == "cudaMemcpy":
        got = code(name, memory.pageable, memory.device, 8, TO_HOST)
    else:
        got = code(name, memory.device, 0, 8)
    assert got == Error.UNSUPPORTED
    assert code("cudaStreamEndCapture", stream, ctypes.byref(graph)) == Error.INVALIDATED


def test_a_graph_copies_what_is_there_when_it_runs(things: Things, memory: Memory) -> None:
    memory.set("pageable", 1)
    memory.set("other_pageable", 0)
    stream = things.stream()
    ok("cudaStreamBeginCapture", stream, 0)
    ok("cudaMemcpyAsync", memory.device, memory.pageable, SIZE, TO_DEVICE, stream)
    ok("cudaMemcpyAsync", memory.other_pageable, memory.device, SIZE, TO_HOST, stream)
    ok("cudaMemsetAsync", memory.device, 9, SIZE, stream)
    launched = things.exec(things.captured(stream))
    assert memory.get("other_pageable") == bytes(SIZE)
    for byte in (2, 3):
        memory.set("pageable", byte)
        ok("cudaGraphLaunch", launched, stream)
        ok("cudaStreamSynchronize", stream)
        assert memory.get("other_pageable") == bytes([byte]) * SIZE
        assert memory.get("device") == b"\t" * SIZE
