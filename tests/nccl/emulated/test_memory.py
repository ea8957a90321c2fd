"""Memory of the emulated runtime: allocation, poison, guards, pinned memory, pointers, pools."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE

import pytest

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, Gate, Things, alone, code, ended, made, ok, put

POISON = 0xA5
DEFAULT = 4
"""The kind of copies that looks at the pointers."""

UNREGISTERED, HOST, DEVICE, MANAGED = range(4)
"""Types of memory."""


class Attributes(ctypes.Structure):
    """The struct cudaPointerAttributes of driver_types.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("on_device", ctypes.c_void_p),
        ("on_host", ctypes.c_void_p),
        ("reserved", ctypes.c_long * 8),
    ]


def attributes(pointer: int) -> tuple[int, int, int | None, int | None]:
    """Return type, device and both addresses of memory."""
    got = Attributes()
    ok("cudaPointerGetAttributes", ctypes.byref(got), pointer)
    return got.type, got.device, got.on_device, got.on_host


def contents(pointer: int, size: int) -> bytes:
    """Return what is in memory of a device."""
    taken = ctypes.create_string_buffer(size)
    ok("cudaMemcpy", taken, pointer, ctypes.c_size_t(size), DEFAULT)
    return taken.raw


def info() -> tuple[int, int]:
    """Return how much memory is free, and how much there is."""
    available, whole = ctypes.c_size_t(), ctypes.c_size_t()
    ok("cudaMemGetInfo", ctypes.byref(available), ctypes.byref(whole))
    return available.value, whole.value


@pytest.fixture(autouse=True)
def _all_is_freed() -> Iterator[None]:
    before = control.counts()
    yield
    ok("cudaDeviceSynchronize")
    code("cudaGetLastError")
    after = control.counts()
    kinds = [kind for kind in before if "block" in kind or "bytes" in kind]
    assert [after[kind] for kind in kinds] == [before[kind] for kind in kinds]


@pytest.fixture
def memory() -> Iterator[int]:
    """Memory of a device, 1000 bytes."""
    pointer = made("cudaMalloc", 1000)
    yield pointer
    ok("cudaFree", pointer)


# Allocation and the end of it


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
    # It is not sticky, and other devices have memory of their own.
    second = made("cudaMalloc", 3 * mib)
    ok("cudaSetDevice", 1)
    third = made("cudaMalloc", 8 * mib)
    assert info()[0] == 0
    for taken in (first, second, third):
        ok("cudaFree", taken)
    assert info()[0] == 8 * mib
    ok("cudaSetDevice", 0)
    assert info()[0] == 8 * mib
    # Pinned memory is the host's.
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


# Who may touch it


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
    # Work of the device goes on with the handler in place: this faults, and is let in.
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
    """Map memory of the host at an address where there is none."""
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


# Whose memory a pointer points to


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


# Memory in the order of a stream


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
    # Nobody may use it any more, though what is queued does.
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
    # What the stream has freed by then is enough.
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
