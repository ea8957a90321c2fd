"""Layer 3b: launches of kernels: arguments, limits, contexts, and attributes of kernels."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from tests.nccl.emulated.calls import Error, Things, alone, code, made, ok
from tests.nccl.emulated.launched import function, image, launch, load, words


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
    # The kernel and one of the streams are the first device's.
    assert launch(nothing, stream=there) == Error.INVALID_HANDLE
    assert launch(nothing, stream=here) == Error.INVALID_HANDLE
    assert launch(nothing) == Error.INVALID_HANDLE
    assert launch(function(load(image()), "nothing"), stream=there) == 0
    ok("cudaDeviceSynchronize")


def test_a_kernel_runs_on_the_device_of_its_module_and_stream() -> None:
    alone(launches_on_another_device, EMULATED_DEVICES="2")
