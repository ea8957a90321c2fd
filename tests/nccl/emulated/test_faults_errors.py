"""Layer 3b: the last error of a thread, and the names of errors."""

from __future__ import annotations

import ctypes
import re
import threading

from tests.nccl.emulated import build, fetched
from tests.nccl.emulated.calls import Error, Things, code, last, number, ok, text

# The last error of a thread


def test_the_last_error_is_reset_by_its_answer() -> None:
    assert code("cudaSetDevice", 99) == Error.INVALID_DEVICE
    ok("cudaDeviceSynchronize")
    assert code("cudaPeekAtLastError") == Error.INVALID_DEVICE
    assert (last(), last()) == (Error.INVALID_DEVICE, 0)


def test_the_last_error_is_the_threads_own() -> None:
    assert code("cudaSetDevice", 99) == Error.INVALID_DEVICE
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(last()))
    thread.start()
    thread.join()
    assert (seen, last()) == ([0], Error.INVALID_DEVICE)


def test_not_ready_is_no_error(things: Things) -> None:
    stream = things.stream()
    gate = things.gate(stream)
    assert code("cudaStreamQuery", stream) == Error.NOT_READY
    assert last() == 0
    gate.open()


def test_errors_of_the_driver_are_not_the_runtimes_last_error() -> None:
    assert code("cuModuleUnload", 12345) == Error.INVALID_HANDLE
    assert last() == 0


# Names of errors


def enumerated(header: str, pattern: str) -> dict[int, str]:
    """Return the errors of an enum in the headers."""
    found = fetched.headers(fetched.installed().cuda, build.ROOT / "tools")
    (path,) = (folder / header for folder in found if (folder / header).exists())
    matches = re.findall(rf"^\s+({pattern})\s*=\s*(\d+)", path.read_text(), re.MULTILINE)
    return {int(value): name for name, value in matches}


def test_every_error_of_the_runtime_has_its_name_and_a_text() -> None:
    errors = enumerated("driver_types.h", r"cudaSuccess|cudaError\w+")
    assert len(errors) > 100
    unrecognized = "unrecognized error code"
    for error, name in errors.items():
        assert text("cudaGetErrorName", error) == name
        assert text("cudaGetErrorString", error) != unrecognized
    assert text("cudaGetErrorName", 12345) == unrecognized
    assert text("cudaGetErrorString", 12345) == unrecognized


def test_every_error_of_the_driver_has_its_name_and_a_text() -> None:
    errors = enumerated("cuda.h", r"CUDA_SUCCESS|CUDA_ERROR_\w+")
    assert len(errors) > 80
    for error, name in errors.items():
        found = number("cuGetErrorName", error, type=ctypes.c_char_p)
        assert found.decode() == name
        assert number("cuGetErrorString", error, type=ctypes.c_char_p)
    nothing = ctypes.c_char_p(b"untouched")
    for function in ("cuGetErrorName", "cuGetErrorString"):
        assert code(function, 12345, ctypes.byref(nothing)) == Error.INVALID_VALUE
        assert nothing.value is None
