"""Layer 3b: returns of copies and fills to the host, and copies in captures."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from mmap import mmap

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import (
    BLOCKING,
    LONG,
    Error,
    Gate,
    Things,
    alone,
    code,
    ended,
    made,
    ok,
    put,
)
from tests.nccl.emulated.sides import DEFAULT, SIZE, SOON, TO_DEVICE, TO_HOST, Memory


def started(call: Callable[[], object], waits: bool) -> threading.Thread:
    """Make a call in a thread, and check that it waits, or returns."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(SOON if waits else LONG / 2)
    assert thread.is_alive() == waits
    return thread


# Returns to the host


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
