"""The device's kernels as C++ for the host: their own sources, one thread after another.

It shows what they compute and that what they are told has the layout they expect.  It shows nothing
of a device: not its arithmetic, not its compiler, not its memory.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from ncclkv.kernels.device.launch import THREADS
from ncclkv.kernels.device.programs import Program, headers

COMPILER = shutil.which("g++") or shutil.which("clang++")

_ARGUMENT = {
    "copy": "Copies",
    "combine": "Parts",
    "sgd": "Steps",
    "checksum": "Sums",
    "nonfinite": "Search",
}

# The 16-bit floats of CUDA's headers, which need CUDA's compiler; and what that compiler knows.
_BEFORE = """
#include <cstdint>
#include <cstring>
#define __global__
#define __device__
#define __grid_constant__
struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x; };
static Index blockIdx, threadIdx, blockDim, gridDim;
template <class T>
static void atomicAdd(T* where, T more) { *where += more; }
typedef _Float16 __half;
struct __nv_bfloat16 {
    std::uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x) {
        std::uint32_t wide;
        std::memcpy(&wide, &x, 4);
        bits = x != x ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    }
    explicit operator float() const {
        const std::uint32_t wide = std::uint32_t(bits) << 16;
        float x;
        std::memcpy(&x, &wide, 4);
        return x;
    }
};
"""
_AFTER = """
extern "C" void run(unsigned first, unsigned blocks, unsigned threads, const ARGUMENT* argument) {{
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = first; blockIdx.x < blocks; ++blockIdx.x) {{
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {{
            {name}(*argument);
        }}
    }}
}}
"""


class CppLauncher:
    """Takes the place of `Launcher`: runs a program at once, on memory of the host.

    Parameters
    ----------
    folder : Path
        For what is compiled.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._functions: dict[Program, Any] = {}
        for name, text in headers().items():
            (folder / name.decode()).write_bytes(text)

    def __call__(self, program: Program, blocks: int, argument: np.ndarray) -> None:
        self.run(program, 0, blocks, argument)

    def run(self, program: Program, first: int, blocks: int, argument: np.ndarray) -> None:
        """Run the blocks from `first` on of a launch of `blocks`."""
        assert argument.size == 1
        assert argument.dtype is program.argument
        if program not in self._functions:
            self._functions[program] = self._build(program)
        self._functions[program](first, blocks, THREADS, ctypes.c_void_p(argument.ctypes.data))

    def _build(self, program: Program) -> Any:
        assert COMPILER is not None
        stem = self._folder / str(program).replace(" ", "-")
        source, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
        source.write_text(_BEFORE + program.source + _AFTER.format(name=program.name))
        # CUDA's rules for floating point and for unaligned words, as far as C++ has the settings.
        options = ["-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-w"]
        options += [o for o in program.options if not o.startswith(("--fmad", "-DHEADER"))]
        options.append(f"-DARGUMENT={_ARGUMENT[program.name]}")
        command = [COMPILER, *options, str(source), "-o", str(library)]
        subprocess.run(command, check=True, timeout=60)
        return ctypes.CDLL(str(library)).run
