"""Modules of the emulated runtime: images, functions, launches and what becomes of them."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.nccl.emulated import build, compiler, control
from tests.nccl.emulated.calls import Error, Things, alone, code, ended, made, number, ok, put

KERNELS = r"""
#include "kernel.h"

#include <csignal>
#include <cstring>

using emulated::Argument;
using emulated::Launch;

#define KERNEL(name, ...) \
    extern "C" const Argument emulated_arguments_##name[] = {__VA_ARGS__ {0}}; \
    extern "C" int emulated_run_##name(const Launch* launch, void** arguments, const char** words)

static int loads = 0;

// Write what it is launched with, and how often this copy of the library ran.
KERNEL(report, {8}, {4},) {
    (void)words;
    unsigned* out = *static_cast<unsigned**>(arguments[0]);
    std::memcpy(out, launch->grid, 12);
    std::memcpy(out + 3, launch->block, 12);
    out[6] = launch->shared;
    out[7] = *static_cast<unsigned*>(arguments[1]);
    out[8] = ++loads;
    return 0;
}

KERNEL(nothing,) {
    (void)launch, (void)arguments, (void)words;
    return 0;
}

KERNEL(write_at, {8},) {
    (void)launch, (void)words;
    **static_cast<volatile char**>(arguments[0]) = 1;
    return 0;
}

KERNEL(fail, {4},) {
    (void)launch;
    *words = "kernel fail: it was asked to";
    return *static_cast<int*>(arguments[0]);
}
"""
WORDS = 9
"""So many words of 4 bytes the kernel `report` writes."""


@cache
def image() -> bytes:
    """The library of the kernels above."""
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernels.cc", Path(folder) / "kernels.so"
        source.write_text(KERNELS)
        command = [compiler.gxx(), *compiler.OWN_FLAGS, "-shared", f"-I{build.HERE / 'runtime'}"]
        subprocess.run([*command, str(source), "-o", str(target)], check=True)
        return target.read_bytes()


def load(data: bytes) -> int:
    """Load an image; ctypes keeps a zero behind it, as CuPy does."""
    ok("cudaFree", None)
    return made("cuModuleLoadData", ctypes.c_char_p(data))


def function(module: int, name: str) -> int:
    return made("cuModuleGetFunction", module, name.encode())


def launch(
    kernel: int,
    *arguments: Any,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (1, 1, 1),
    shared: int = 0,
    stream: int | None = None,
) -> int:
    pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    sizes = [ctypes.c_uint(size) for size in (*grid, *block, shared)]
    return code("cuLaunchKernel", kernel, *sizes, stream, pointers if arguments else None, None)


@pytest.fixture
def module() -> Iterator[int]:
    loaded = load(image())
    yield loaded
    code("cuModuleUnload", loaded)


@pytest.fixture
def out() -> Iterator[int]:
    pointer = made("cudaMalloc", 4 * WORDS)
    ok("cudaMemset", pointer, 0, 4 * WORDS)
    ok("cudaDeviceSynchronize")  # no other stream comes behind the default one by itself
    yield pointer
    ok("cudaFree", pointer)


def words(pointer: int) -> list[int]:
    taken = (ctypes.c_uint * WORDS)()
    ok("cudaMemcpy", taken, pointer, ctypes.sizeof(taken), 4)
    return list(taken)


# Launches


def test_a_kernel_gets_its_launch_and_its_arguments(module: int, out: int) -> None:
    report = function(module, "report")
    pointer, value = ctypes.c_void_p(out), ctypes.c_uint(77)
    got = launch(report, pointer, value, grid=(2, 3, 4), block=(5, 6, 7), shared=8)
    assert got == 0
    ok("cudaDeviceSynchronize")
    assert words(out) == [2, 3, 4, 5, 6, 7, 8, 77, 1]


def test_arguments_are_taken_at_the_call_and_it_runs_in_the_streams_order(
    things: Things, module: int, out: int
) -> None:
    report, stream = function(module, "report"), things.stream()
    gate = things.gate(stream)
    pointer, value = ctypes.c_void_p(out), ctypes.c_uint(1)
    assert launch(report, pointer, value, stream=stream) == 0
    pointer.value, value.value = None, 2
    assert words(out)[7] == 0
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert words(out)[7] == 1


def test_a_graph_runs_a_kernel_with_the_arguments_of_the_capture(
    things: Things, module: int, out: int
) -> None:
    report, stream = function(module, "report"), things.stream()
    ok("cudaStreamBeginCapture", stream, 0)
    assert launch(report, ctypes.c_void_p(out), ctypes.c_uint(3), stream=stream) == 0
    graph = things.exec(things.captured(stream))
    ok("cuModuleUnload", module)
    for runs in (1, 2):
        ok("cudaGraphLaunch", graph, stream)
        ok("cudaStreamSynchronize", stream)
        assert words(out)[7:] == [3, runs]


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid": (0, 1, 1)},
        {"grid": (1, 0, 1)},
        {"grid": (1 << 31, 1, 1)},
        {"grid": (1, 65536, 1)},
        {"grid": (1, 1, 65536)},
        {"block": (0, 1, 1)},
        {"block": (1025, 1, 1)},
        {"block": (1, 1025, 1)},
        {"block": (1, 1, 65)},
        {"block": (32, 33, 1)},
        {"block": (16, 1, 64), "shared": (48 << 10) + 1},
        {"shared": (48 << 10) + 1},
    ],
)
def test_a_launch_keeps_to_the_limits(module: int, wrong: dict[str, Any]) -> None:
    nothing = function(module, "nothing")
    assert launch(nothing, **wrong) == Error.INVALID_VALUE


def test_launches_at_the_limits_run(module: int) -> None:
    nothing = function(module, "nothing")
    for block in ((1024, 1, 1), (1, 1024, 1), (16, 1, 64), (32, 32, 1)):
        assert launch(nothing, block=block, shared=48 << 10) == 0
    assert launch(nothing, grid=((1 << 31) - 1, 65535, 65535)) == 0
    ok("cudaDeviceSynchronize")


def test_more_shared_memory_is_asked_for(module: int) -> None:
    most = 8
    nothing = function(module, "nothing")
    assert number_of(most, nothing) == 48 << 10
    ok("cuFuncSetAttribute", nothing, most, 227 << 10)
    assert number_of(most, nothing) == 227 << 10
    assert launch(nothing, shared=227 << 10) == 0
    assert launch(nothing, shared=(227 << 10) + 1) == Error.INVALID_VALUE
    got = code("cuFuncSetAttribute", nothing, most, (227 << 10) + 1)
    assert got == Error.INVALID_VALUE
    ok("cudaDeviceSynchronize")


def number_of(attribute: int, kernel: int) -> int:
    value = ctypes.c_int()
    ok("cuFuncGetAttribute", ctypes.byref(value), attribute, kernel)
    return value.value


def test_what_is_asked_of_a_kernel(module: int) -> None:
    nothing = function(module, "nothing")
    assert [number_of(attribute, nothing) for attribute in (0, 1, 5, 6)] == [1024, 0, 90, 90]
    value = ctypes.c_int()
    got = code("cuFuncGetAttribute", ctypes.byref(value), 1000, nothing)
    assert got == Error.INVALID_VALUE
    assert code("cuFuncSetAttribute", nothing, 0, 64) == Error.INVALID_VALUE
    assert code("cuFuncGetAttribute", ctypes.byref(value), 0, 4711) == Error.INVALID_HANDLE


@pytest.mark.parametrize(
    ("threads", "shared", "blocks"),
    [(1024, 0, 2), (256, 0, 8), (32, 0, 32), (256, 113 << 10, 2), (1025, 0, 0)],
)
def test_occupancy_follows_from_the_limits(
    module: int, threads: int, shared: int, blocks: int
) -> None:
    nothing, got = function(module, "nothing"), ctypes.c_int()
    name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    ok(name, ctypes.byref(got), nothing, threads, ctypes.c_size_t(shared))
    assert got.value == blocks
    assert code(name, ctypes.byref(got), nothing, 0, 0) == Error.INVALID_VALUE


def test_the_best_size_of_a_block(module: int) -> None:
    grid, block = ctypes.c_int(), ctypes.c_int()
    where = (ctypes.byref(grid), ctypes.byref(block), function(module, "nothing"))
    ok("cuOccupancyMaxPotentialBlockSize", *where, None, ctypes.c_size_t(0), 0)
    assert (grid.value, block.value) == (2 * 132, 1024)
    ok("cuOccupancyMaxPotentialBlockSize", *where, None, ctypes.c_size_t(0), 128)
    assert (grid.value, block.value) == (16 * 132, 128)


def test_a_launch_without_its_arguments_is_refused(module: int) -> None:
    assert launch(function(module, "report")) == Error.INVALID_VALUE
    assert launch(4711) == Error.INVALID_HANDLE
    assert launch(function(module, "nothing"), stream=4711) == Error.INVALID_HANDLE


def test_arguments_in_a_buffer_are_refused_by_name(module: int) -> None:
    one = [ctypes.c_uint(1)] * 6
    extra = (ctypes.c_void_p * 1)()
    nothing = function(module, "nothing")
    got = code("cuLaunchKernel", nothing, *one, ctypes.c_uint(0), None, None, extra)
    assert got == Error.NOT_SUPPORTED


class Config(ctypes.Structure):
    """The struct CUlaunchConfig of cuda.h."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


def test_a_launch_can_be_a_struct(module: int, out: int) -> None:
    report, arguments = function(module, "report"), [ctypes.c_void_p(out), ctypes.c_uint(5)]
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, arguments))
    config = Config((1, 2, 3), (4, 5, 6), 7)
    ok("cuLaunchKernelEx", ctypes.byref(config), report, pointers, None)
    ok("cudaDeviceSynchronize")
    assert words(out)[:8] == [1, 2, 3, 4, 5, 6, 7, 5]
    config.count = 1
    got = code("cuLaunchKernelEx", ctypes.byref(config), report, pointers, None)
    assert got == Error.NOT_SUPPORTED


def launches_without_a_context() -> None:
    nothing, seen = function(load(image()), "nothing"), []
    module = ctypes.c_void_p()

    def try_it() -> None:
        seen.append(launch(nothing))
        seen.append(code("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image())))
        ok("cudaSetDevice", 0)
        seen.append(launch(nothing))

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert seen == [Error.INVALID_CONTEXT, Error.INVALID_CONTEXT, 0]


def test_a_thread_needs_a_context() -> None:
    alone(launches_without_a_context)


def launches_on_another_device() -> None:
    nothing = function(load(image()), "nothing")
    here = made("cudaStreamCreate")
    ok("cudaSetDevice", 1)
    there = made("cudaStreamCreate")
    # The kernel is the first device's, and so is one of the streams.
    assert launch(nothing, stream=there) == Error.INVALID_HANDLE
    assert launch(nothing, stream=here) == Error.INVALID_HANDLE
    assert launch(nothing) == Error.INVALID_HANDLE
    assert launch(function(load(image()), "nothing"), stream=there) == 0
    ok("cudaDeviceSynchronize")


def test_a_kernel_runs_on_the_device_of_its_module_and_stream() -> None:
    alone(launches_on_another_device, EMULATED_DEVICES="2")


# Kernels that fail


def launches_and_asks(name: str, *arguments: Any) -> int:
    """Launch a kernel; return the error that the device then has."""
    kernel = function(load(image()), name)
    assert launch(kernel, *arguments) == 0
    got = code("cudaDeviceSynchronize")
    assert code("cudaDeviceSynchronize") == got
    return got


def writes_behind_a_block() -> None:
    pointer = made("cudaMalloc", 512)
    got = launches_and_asks("write_at", ctypes.c_void_p(pointer + 512))
    assert got == Error.ILLEGAL_ADDRESS


def writes_at_null() -> None:
    assert launches_and_asks("write_at", ctypes.c_void_p(8)) == Error.ILLEGAL_ADDRESS


def writes_into_freed_memory() -> None:
    pointer = made("cudaMalloc", 512)
    ok("cudaFree", pointer)
    assert launches_and_asks("write_at", ctypes.c_void_p(pointer)) == Error.ILLEGAL_ADDRESS


@pytest.mark.parametrize(
    ("run", "where"),
    [
        (writes_behind_a_block, "byte 512 of a block of 512 bytes"),
        (writes_at_null, "0x8: in no live block"),
        (writes_into_freed_memory, "in no live block"),
    ],
)
@pytest.mark.parametrize("options", [(), ("-X", "faulthandler")])
def test_a_kernel_that_touches_no_memory_loses_the_device(
    run: Callable[[], None], where: str, options: tuple[str, ...]
) -> None:
    process = ended(run, *options)
    assert process.returncode == 0, process.stderr
    assert "emulated: kernel write_at touched an illegal address" in process.stderr
    assert where in process.stderr
    assert "Fatal" not in process.stderr


def fails_by_itself() -> None:
    assert launches_and_asks("fail", ctypes.c_int(719)) == Error.LAUNCH_FAILURE


def test_a_kernel_that_fails_loses_the_device_in_its_words() -> None:
    process = ended(fails_by_itself)
    assert process.returncode == 0, process.stderr
    assert "emulated: kernel fail: it was asked to" in process.stderr


def touches_memory_after_a_kernel_failed() -> None:
    writes_at_null()
    ctypes.string_at(64, 1)


def test_faults_of_the_host_are_its_own_after_a_kernels() -> None:
    process = ended(touches_memory_after_a_kernel_failed, "-X", "faulthandler")
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in process.stderr


def other_work_faults_after_a_kernel() -> None:
    stream = made("cudaStreamCreate")
    assert launch(function(load(image()), "nothing"), stream=stream) == 0
    assert put(stream, lambda: ctypes.string_at(64, 1)) == 0
    code("cudaStreamSynchronize", stream)


def test_a_fault_of_other_work_is_no_kernels() -> None:
    process = ended(other_work_faults_after_a_kernel)
    assert process.returncode == -signal.SIGSEGV
    assert "kernel" not in process.stderr


# Images


def test_an_image_may_lack_its_last_byte() -> None:
    # CuPy takes the last byte of what the compiler gives it for the end of a text.
    assert image().endswith(b"\0")
    module = load(image()[:-1])
    assert launch(function(module, "nothing")) == 0
    ok("cudaDeviceSynchronize")
    ok("cuModuleUnload", module)


def test_an_image_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    for data in (image(), image()[:-1]):
        path.write_bytes(data)
        module = made("cuModuleLoad", str(path).encode())
        assert function(module, "nothing")
        ok("cuModuleUnload", module)
    nowhere = str(tmp_path / "none").encode()
    pointer = ctypes.c_void_p()
    path.write_bytes(image()[:-2])
    got = code("cuModuleLoad", ctypes.byref(pointer), str(path).encode())
    assert got == Error.INVALID_IMAGE
    assert code("cuModuleLoad", ctypes.byref(pointer), nowhere) == Error.FILE_NOT_FOUND


def test_each_load_is_a_library_of_its_own(out: int) -> None:
    before = control.count("modules")
    modules = [load(image()) for _ in range(2)]
    assert control.count("modules") == before + 2
    for module in modules:
        report = function(module, "report")
        for runs in (1, 2):
            assert launch(report, ctypes.c_void_p(out), ctypes.c_uint(0)) == 0
            ok("cudaDeviceSynchronize")
            assert words(out)[8] == runs
        ok("cuModuleUnload", module)
    assert control.count("modules") == before


def test_a_library_is_loaded_again_where_another_was_closed(out: int) -> None:
    for _ in range(3):
        module = load(image())
        assert launch(function(module, "report"), ctypes.c_void_p(out), ctypes.c_uint(0)) == 0
        ok("cudaDeviceSynchronize")
        assert words(out)[8] == 1
        ok("cuModuleUnload", module)


def test_a_module_that_is_unloaded_has_no_functions(module: int) -> None:
    nothing = function(module, "nothing")
    assert function(module, "nothing") == nothing
    ok("cuModuleUnload", module)
    assert launch(nothing) == Error.INVALID_HANDLE
    assert code("cuModuleUnload", module) == Error.INVALID_HANDLE
    pointer = ctypes.c_void_p()
    got = code("cuModuleGetFunction", ctypes.byref(pointer), module, b"nothing")
    assert got == Error.INVALID_HANDLE


def test_a_module_that_is_unloaded_stays_while_its_kernels_are_queued(
    things: Things, out: int
) -> None:
    module, stream = load(image()), things.stream()
    gate = things.gate(stream)
    report = function(module, "report")
    assert launch(report, ctypes.c_void_p(out), ctypes.c_uint(9), stream=stream) == 0
    ok("cuModuleUnload", module)
    gate.open()
    ok("cudaStreamSynchronize", stream)
    assert words(out)[7] == 9


def test_there_are_no_other_functions(module: int) -> None:
    pointer = ctypes.c_void_p()
    for name in (b"missing", b"", b"emulated_run_nothing"):
        got = code("cuModuleGetFunction", ctypes.byref(pointer), module, name)
        assert got == Error.NOT_FOUND


def loads_what_is_no_library() -> None:
    ok("cudaFree", None)
    cubin = bytearray(image())
    cubin[18] = 190  # the machine of the file: EM_CUDA
    program = bytearray(image())
    program[16] = 2  # the type of the file: ET_EXEC
    pointer = ctypes.c_void_p()
    for data, error in (
        (b".version 8.0\n.target sm_90\n" + bytes(64), Error.INVALID_IMAGE),
        (b"nothing at all" + bytes(64), Error.INVALID_IMAGE),
        (bytes.fromhex("50ed55ba") + bytes(64), Error.NO_BINARY),
        (bytes(cubin), Error.NO_BINARY),
        (bytes(program), Error.INVALID_IMAGE),
    ):
        got = code("cuModuleLoadData", ctypes.byref(pointer), ctypes.c_char_p(data))
        assert got == error, (data[:20], got)


def test_what_is_no_library_is_refused_in_words() -> None:
    process = ended(loads_what_is_no_library)
    assert process.returncode == 0, process.stderr
    for what in (
        "it is PTX, and nothing compiles that here",
        "it is no shared library",
        "it is a fat binary for a GPU",
        "it is a cubin, machine code of a GPU",
    ):
        assert f"emulated: a module cannot be loaded: {what}" in process.stderr


def asks_for_a_variable() -> None:
    pointer, size = ctypes.c_void_p(), ctypes.c_size_t()
    where = (ctypes.byref(pointer), ctypes.byref(size))
    got = code("cuModuleGetGlobal_v2", *where, load(image()), b"table")
    assert got == Error.NOT_SUPPORTED


def test_variables_of_kernels_are_refused_by_name() -> None:
    process = ended(asks_for_a_variable)
    assert process.returncode == 0, process.stderr
    assert "emulated: cuModuleGetGlobal is not emulated (of the variable 'table')" in process.stderr


def test_a_capture_forbids_no_launch_but_the_load_of_a_module(things: Things) -> None:
    stream, graph, module = things.stream(), ctypes.c_void_p(), ctypes.c_void_p()
    ok("cudaStreamBeginCapture", stream, 0)
    got = code("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image()))
    assert got == Error.UNSUPPORTED
    assert code("cudaStreamEndCapture", stream, ctypes.byref(graph)) == Error.INVALIDATED


def test_cupy_runs_a_module(out: int) -> None:
    import cupy

    module = cupy.cuda.Module()
    module.load(image())
    report = module.get_function("report")
    report((3, 1, 1), (64, 1, 1), (out, cupy.uint32(12)))
    cupy.cuda.Device().synchronize()
    assert words(out)[:8] == [3, 1, 1, 64, 1, 1, 0, 12]
    assert number("cudaGetDevice") == 0
