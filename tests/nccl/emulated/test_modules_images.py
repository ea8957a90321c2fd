"""Layer 3b: images of modules: their format, loads and unloads."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.nccl.emulated import control
from tests.nccl.emulated.calls import Error, Things, code, ended, made, number, ok
from tests.nccl.emulated.launched import function, image, launch, load, words


def test_an_image_may_lack_its_last_byte() -> None:
    # CuPy takes the last byte of a compiler's result for the end of a text.
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
