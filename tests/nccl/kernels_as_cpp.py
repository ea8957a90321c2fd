"""The device's kernels as C++ for the host: their own sources, one thread after another.

The tests show what the kernels compute, and that launch arguments have the expected layout. They
show nothing of a device's arithmetic, compiler and memory. Layer 3b compiles the kernels in the
same way, and runs them behind CuPy.
"""

from __future__ import annotations

import shutil

import numpy as np

from ncclkv.kernels.device.launch import THREADS
from ncclkv.kernels.device.sources import KernelSource, headers
from tests.nccl.emulated.kernel_images import Source, image
from tests.nccl.emulated.kernel_module import HostModule

COMPILER = shutil.which("g++")


def compiled(program: KernelSource) -> HostModule:
    """Compile a program for the host."""
    included = {name.decode(): text for name, text in headers().items()}
    return HostModule(
        image(Source(program.source, f"{program.name}.cu", included, program.options))
    )


class CppLauncher:
    """A launcher in place of `Launcher`: it runs a program at once, on host memory."""

    def __init__(self) -> None:
        self._modules: dict[KernelSource, HostModule] = {}

    def __call__(self, program: KernelSource, blocks: int, argument: np.ndarray) -> None:
        self.run(program, 0, blocks, argument)

    def run(self, program: KernelSource, first: int, blocks: int, argument: np.ndarray) -> None:
        """Run all blocks from `first` on, of a launch of `blocks` blocks."""
        assert argument.size == 1
        assert argument.dtype is program.argument
        if program not in self._modules:
            self._modules[program] = compiled(program)
        if blocks:
            module = self._modules[program]
            module.launch(program.name, blocks, THREADS, [argument.reshape(())], first=first)
