"""Launches of kernels on the current stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ncclkv import env
from ncclkv.errors import UsageError
from ncclkv.kernels.device.cubins import cubin
from ncclkv.kernels.device.sources import KernelSource
from ncclkv.system import watchdog

THREADS = 256
"""Threads of a block."""

Launch = Callable[[KernelSource, int, NDArray[Any]], None]
"""Launch a program's blocks, on an argument."""

# By device and program; of the whole process, as what is loaded on a device is.
_functions: dict[tuple[int, KernelSource], Any] = {}
_loading = threading.Lock()


class KernelLauncher:
    """Launches programs on CuPy's current device and stream, and waits for nothing.

    A kernel is loaded at its first launch on a device, and compiled when no file has its code.
    Loading takes up to a tenth of a second, and is refused while the stream is being captured.
    """

    def load(self, program: KernelSource) -> Any:
        """Return the function on the current device, compiling it at the first call."""
        import cupy

        key = (cupy.cuda.runtime.getDevice(), program)
        function = _functions.get(key)
        if function is None:
            if cupy.cuda.get_current_stream().is_capturing():
                raise UsageError(
                    f"kernel {program} is launched for the first time, which loads it, and that "
                    f"cannot be done in a capture; make the same step once before it"
                )
            with _loading:
                function = _functions.get(key) or self._load(program)
                _functions[key] = function
        return function

    def _load(self, program: KernelSource) -> Any:
        """Load a program on the current device."""
        import cupy

        # CUDA may wait for all kernels that run, which may be collectives, before it loads.
        with watchdog.guard(f"loading the kernel {program}", env.timeout()):
            capability = cupy.cuda.Device().compute_capability
            module = cupy.cuda.Module()
            module.load(cubin(program, f"sm_{capability}"))
            return module.get_function(program.name)

    def __call__(self, program: KernelSource, blocks: int, argument: NDArray[Any]) -> None:
        """Launch `blocks` blocks of a program; with none there is nothing to do."""
        if blocks:
            self.load(program)((blocks,), (THREADS,), (argument,))
