"""The device's kernels as C++ for the host: their own sources, one thread after another.

It shows what they compute and that what they are told has the layout they expect.  It shows nothing
of a device: not its arithmetic, not its compiler, not its memory.  Layer 3b compiles them in the
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
    """Return a program, compiled for the host."""
    included = {name.decode(): text for name, text in headers().items()}
    return HostModule(
        image(Source(program.source, f"{program.name}.cu", included, program.options))
    )


class CppLauncher:
    """Takes the place of `Launcher`: runs a program at once, on memory of the host."""

    def __init__(self) -> None:
        self._modules: dict[KernelSource, HostModule] = {}

    def __call__(self, program: KernelSource, blocks: int, argument: np.ndarray) -> None:
        self.run(program, 0, blocks, argument)

    def run(self, program: KernelSource, first: int, blocks: int, argument: np.ndarray) -> None:
        """Run the blocks from `first` on of a launch of `blocks`."""
        assert argument.size == 1
        assert argument.dtype is program.argument
        if program not in self._modules:
            self._modules[program] = compiled(program)
        if blocks:
            module = self._modules[program]
            module.launch(program.name, blocks, THREADS, [argument.reshape(())], first=first)
