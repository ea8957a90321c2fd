"""Layer 3b: kernels that fail, and the loss of their device."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.nccl.emulated.calls import Error, code, ended, made, ok, put
from tests.nccl.emulated.launched import function, image, launch, load


def launches_and_asks(name: str, *arguments: Any) -> int:
    """Launch a kernel; return the device's error afterwards."""
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
