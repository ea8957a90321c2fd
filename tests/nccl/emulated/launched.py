"""A module of kernels for tests of the emulated runtime, and its launches."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.nccl.emulated import build, compiler
from tests.nccl.emulated.calls import code, made, ok

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
"""Count of words of 4 bytes that the kernel `report` writes."""


@cache
def image() -> bytes:
    """Return the library of the kernels above."""
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernels.cc", Path(folder) / "kernels.so"
        source.write_text(KERNELS)
        command = [compiler.gxx(), *compiler.OWN_FLAGS, "-shared", f"-I{build.HERE / 'runtime'}"]
        subprocess.run([*command, str(source), "-o", str(target)], check=True)
        return target.read_bytes()


def load(data: bytes) -> int:
    """Load an image; ctypes appends a zero, as CuPy does."""
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


def words(pointer: int) -> list[int]:
    taken = (ctypes.c_uint * WORDS)()
    ok("cudaMemcpy", taken, pointer, ctypes.sizeof(taken), 4)
    return list(taken)
