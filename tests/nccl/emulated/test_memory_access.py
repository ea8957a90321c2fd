"""Layer 3b: access to a device's memory, and faults of forbidden access."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE

import pytest

from tests.nccl.emulated.calls import Gate, Things, alone, code, ended, made, ok, put
from tests.nccl.emulated.memory import contents

pytestmark = pytest.mark.usefixtures("all_is_freed")


def reads_on_the_host() -> None:
    pointer = made("cudaMalloc", 1000)
    ok("cudaMemset", pointer, 1, 1000)
    ok("cudaDeviceSynchronize")
    print("before", flush=True)
    ctypes.string_at(pointer + 10, 1)


def reads_on_the_host_while_work_runs() -> None:
    pointer = made("cudaMalloc", 1000)
    stream = made("cudaStreamCreateWithFlags", 1)
    Gate(stream).begun()
    print("before", flush=True)
    ctypes.string_at(pointer + 10, 1)


def reads_fresh_memory_on_the_host() -> None:
    pointer = made("cudaMalloc", 1000)
    print("before", flush=True)
    ctypes.string_at(pointer + 10, 1)


@pytest.mark.parametrize(
    "run", [reads_on_the_host, reads_on_the_host_while_work_runs, reads_fresh_memory_on_the_host]
)
def test_host_code_that_touches_memory_of_a_device_faults(run: Callable[[], None]) -> None:
    process = ended(run)
    assert process.stdout == "before\n"
    assert process.returncode == -signal.SIGSEGV
    words = "emulated: host code touched memory of a device"
    assert words in process.stderr
    assert "byte 10 of a block of 1000 bytes" in process.stderr


def test_memory_is_open_without_the_guard() -> None:
    process = ended(reads_on_the_host, EMULATED_GUARD="0")
    assert (process.returncode, process.stdout) == (0, "before\n")


def reads_after_the_fault_handler_came() -> None:
    import faulthandler

    pointer = made("cudaMalloc", 1000)
    faulthandler.enable()
    ok("cudaMemset", pointer, 1, 1000)
    # The device's own work is allowed: the handler catches its fault, and maps the page.
    assert contents(pointer, 1000) == b"\1" * 1000
    ctypes.string_at(pointer + 10, 1)


@pytest.mark.parametrize("run", [reads_on_the_host, reads_after_the_fault_handler_came])
def test_a_fault_of_the_host_goes_to_the_handler_that_was_there(run: Callable[[], None]) -> None:
    options = ("-X", "faulthandler") if run is reads_on_the_host else ()
    process = ended(run, *options)
    assert process.returncode == -signal.SIGSEGV
    assert "emulated: host code touched memory of a device" in process.stderr
    assert "Fatal Python error: Segmentation fault" in process.stderr
    assert run.__name__ in process.stderr


def crashes_elsewhere() -> None:
    made("cudaMalloc", 1000)
    ctypes.string_at(64, 1)


def test_another_fault_of_the_host_stays_what_it_is() -> None:
    process = ended(crashes_elsewhere, "-X", "faulthandler")
    assert process.returncode == -signal.SIGSEGV
    assert "emulated" not in process.stderr.split("Fatal Python error")[0]
    assert "Fatal Python error: Segmentation fault" in process.stderr


def test_work_of_a_device_touches_all_of_a_large_block(things: Things) -> None:
    size = 7 << 20
    pointer, other = made("cudaMalloc", size), made("cudaMalloc", size)
    stream = things.stream()
    seen: list[bytes] = []

    def look() -> None:
        ctypes.memset(pointer, 3, size)
        ctypes.memmove(other, pointer, size)
        seen.append(ctypes.string_at(other, size))

    for _ in range(2):
        assert put(stream, look) == 0
        ok("cudaStreamSynchronize", stream)
    assert seen == [b"\3" * size] * 2
    ok("cudaFree", pointer)
    ok("cudaFree", other)


def fills_freed_memory() -> None:
    pointer = made("cudaMalloc", 1 << 20)
    ok("cudaFree", pointer)
    stream = made("cudaStreamCreate")
    put(stream, lambda: ctypes.memset(pointer, 0, 1 << 20))
    code("cudaStreamSynchronize", stream)


def fills_past_the_end() -> None:
    pointer = made("cudaMalloc", 4096 + 512)
    stream = made("cudaStreamCreate")
    put(stream, lambda: ctypes.memset(pointer + 4096, 0, 513))
    code("cudaStreamSynchronize", stream)


def maps_memory_where_a_block_was_freed() -> None:
    stream = made("cudaStreamCreateWithFlags", 1)
    gate = Gate(stream)
    gate.begun()
    ok("cudaSetDevice", 1)
    pointer = made("cudaMalloc", 4096)
    ok("cudaMemset", pointer, 1, 4096)
    ok("cudaFree", pointer)
    area = mmap_at(pointer, 4096)
    gate.open()
    ok("cudaSetDevice", 0)
    ok("cudaStreamSynchronize", stream)
    ctypes.memset(area, 1, 4096)


def mmap_at(address: int, size: int) -> int:
    """Map memory of the host at a free address."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    flags = MAP_PRIVATE | MAP_ANONYMOUS | 0x100000  # MAP_FIXED_NOREPLACE
    where = (ctypes.c_void_p(address), ctypes.c_size_t(size))
    got = libc.mmap(*where, PROT_READ | PROT_WRITE, flags, -1, ctypes.c_long(0))
    assert got == address
    return address


def test_freed_memory_is_not_closed() -> None:
    alone(maps_memory_where_a_block_was_freed, EMULATED_DEVICES="2")


def reads_freed_memory_of_the_host() -> None:
    pinned = made("cudaMallocHost", 4096)
    ctypes.string_at(pinned, 1)
    ok("cudaFreeHost", pinned)
    ctypes.string_at(pinned, 1)


def reads_past_the_end_on_the_host() -> None:
    ctypes.string_at(made("cudaMallocHost", 512) + 512, 1)


@pytest.mark.parametrize(
    "run",
    [
        fills_freed_memory,
        fills_past_the_end,
        reads_freed_memory_of_the_host,
        reads_past_the_end_on_the_host,
    ],
)
def test_what_touches_no_memory_faults(run: Callable[[], None]) -> None:
    assert ended(run).returncode == -signal.SIGSEGV
