"""Launches of kernels on the current device and stream; they wait for nothing.

A kernel is loaded at its first launch on a device, and compiled if no file has its code.  Loading
takes up to a tenth of a second, and is refused during a capture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv import concurrency, env
from ncclkv.errors import UsageError
from ncclkv.kernels.device.cubins import cubin
from ncclkv.kernels.device.kernel_args import THREADS
from ncclkv.kernels.device.sources import KernelSource
from ncclkv.system import watchdog

Launch = Callable[[KernelSource, int, NDArray[Any]], None]
"""Function ``launch(program, blocks, argument)``."""

# Loaded kernels by device and program: a device keeps them for the whole process.
_functions: dict[tuple[int, KernelSource], Any] = {}
_loading = concurrency.Lock()


def launch(program: KernelSource, blocks: int, argument: NDArray[Any]) -> None:
    """Launch `blocks` blocks of a program; do nothing for 0 blocks."""
    if blocks:
        # Without fields: CuPy describes them at each launch, which takes longer than a launch.
        load(program)((blocks,), (THREADS,), (argument.view(_as_bytes(argument.itemsize)),))


@cache
def _as_bytes(count: int) -> np.dtype[Any]:
    """Return the dtype of so many bytes without fields."""
    return np.dtype((np.void, count))


def load(program: KernelSource) -> Any:
    """Return the function on the current device, compiling it at the first call."""
    import cupy

    key = (cupy.cuda.runtime.getDevice(), program)
    function = _functions.get(key)
    if function is None:
        if cupy.cuda.get_current_stream().is_capturing():
            raise UsageError(
                f"capture: kernel {program} is not loaded, and a capture cannot load it; make "
                f"the same step once before the capture"
            )
        with _loading:
            function = _functions.get(key) or _load(program)
            _functions[key] = function
    return function


def _load(program: KernelSource) -> Any:
    """Load a program on the current device."""
    import cupy

    # CUDA may wait for all running kernels before it loads, also for collectives.
    with watchdog.guard(f"loading the kernel {program}", env.timeout()):
        capability = cupy.cuda.Device().compute_capability
        module = cupy.cuda.Module()
        module.load(cubin(program, f"sm_{capability}"))
        return module.get_function(program.name)
