"""Layer 3b: memory in the order of a stream, pools, and allocations that a capture forbids."""

from __future__ import annotations

import ctypes

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, Things, alone, code, ended, made, ok, put
from tests.nccl.emulated.memory import UNREGISTERED, attributes

pytestmark = pytest.mark.usefixtures("all_is_freed")


def test_memory_is_freed_when_the_stream_comes_to_it(things: Things) -> None:
    stream = things.stream()
    pointer = made("cudaMallocAsync", 1000, stream)
    gate = things.gate(stream)
    ok("cudaMemsetAsync", pointer, 5, ctypes.c_size_t(1000), stream)
    seen: list[bytes] = []
    assert put(stream, lambda: seen.append(ctypes.string_at(pointer, 1000))) == 0
    before = control.count("device_blocks")
    ok("cudaFreeAsync", pointer, stream)
    assert control.count("device_blocks") == before
    # New work may not use the memory, but queued work does.
    assert attributes(pointer)[0] == UNREGISTERED
    assert code("cudaFreeAsync", pointer, stream) == Error.INVALID_VALUE
    assert code("cudaFree", pointer) == Error.INVALID_VALUE
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert control.count("device_blocks") == before - 1
    assert seen == [b"\5" * 1000]


def uses_pools() -> None:
    import cupy

    mib = 1 << 20
    stream = cupy.cuda.Stream(non_blocking=True)
    runtime = cupy.cuda.runtime
    pool = runtime.deviceGetDefaultMemPool(0)
    used, most = runtime.cudaMemPoolAttrUsedMemCurrent, runtime.cudaMemPoolAttrUsedMemHigh
    first = runtime.mallocAsync(6 * mib, stream.ptr)
    assert runtime.memPoolGetAttribute(pool, used) == 6 * mib
    runtime.freeAsync(first, stream.ptr)
    # The stream's earlier frees leave enough memory.
    second = runtime.mallocAsync(6 * mib, stream.ptr)
    runtime.free(second)
    assert runtime.memPoolGetAttribute(pool, used) == 0
    assert runtime.memPoolGetAttribute(pool, most) == 6 * mib
    runtime.memPoolSetAttribute(pool, most, 0)
    assert runtime.memPoolGetAttribute(pool, most) == 0
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc), stream:
        array = cupy.empty(100)
        assert runtime.memPoolGetAttribute(pool, used) > 0
        del array
    stream.synchronize()
    assert runtime.memPoolGetAttribute(pool, used) == 0


def test_pools_count_what_is_used() -> None:
    alone(uses_pools, EMULATED_MEMORY="8")


def captures_an_allocation() -> None:
    stream = made("cudaStreamCreate")
    ok("cudaStreamBeginCapture", stream, 2)
    pointer = ctypes.c_void_p()
    got = code("cudaMallocAsync", ctypes.byref(pointer), 64, stream)
    assert got == Error.NOT_SUPPORTED


def test_an_allocation_in_a_capture_is_refused_by_name() -> None:
    process = ended(captures_an_allocation)
    assert process.returncode == 0, process.stderr
    assert "emulated: cudaMallocAsync in a capture is not emulated" in process.stderr


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cudaMalloc", (64,)),
        ("cudaMallocManaged", (64, 1)),
        ("cudaMallocHost", (64,)),
        ("cudaHostAlloc", (64, 0)),
    ],
)
def test_a_capture_forbids_allocations(
    things: Things, name: str, arguments: tuple[int, ...]
) -> None:
    stream, pointer = things.stream(), ctypes.c_void_p()
    ok("cudaStreamBeginCapture", stream, 0)
    assert code(name, ctypes.byref(pointer), *arguments) == Error.UNSUPPORTED
    assert code("cudaStreamEndCapture", stream, ctypes.byref(pointer)) == Error.INVALIDATED


@pytest.mark.parametrize("pinned", [False, True])
def test_a_capture_forbids_frees(things: Things, pinned: bool) -> None:
    allocate, free = ("cudaMallocHost", "cudaFreeHost") if pinned else ("cudaMalloc", "cudaFree")
    memory = made(allocate, 64)
    stream, graph = things.stream(), ctypes.c_void_p()
    ok("cudaStreamBeginCapture", stream, 0)
    assert code(free, memory) == Error.UNSUPPORTED
    assert code("cudaStreamEndCapture", stream, ctypes.byref(graph)) == Error.INVALIDATED
    ok(free, memory)
