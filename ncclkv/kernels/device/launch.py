"""From a program to a launch on the current stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from ncclkv import env, watchdog
from ncclkv.errors import UsageError
from ncclkv.kernels.device.compiler import build
from ncclkv.kernels.device.programs import Program

THREADS = 256
"""Of a block."""

Launch = Callable[[Program, int, NDArray[Any]], None]
"""Launch a program's blocks, on an argument."""


class Launcher:
    """Launches programs on CuPy's current device and stream, and waits for nothing.

    A program is compiled and loaded when it is launched on a device for the first time, which takes
    tens of milliseconds and cannot happen while the stream is being captured: it is refused then.
    """

    def __init__(self) -> None:
        self._functions: dict[tuple[int, Program], Any] = {}

    def load(self, program: Program) -> Any:
        """Return the function on the current device, compiling it at the first call."""
        import cupy

        key = (cupy.cuda.runtime.getDevice(), program)
        function = self._functions.get(key)
        if function is None:
            if cupy.cuda.get_current_stream().is_capturing():
                raise UsageError(
                    f"kernel {program} is launched for the first time, which loads it, and that "
                    f"cannot be done in a capture; make the same step once before it"
                )
            # CUDA may wait for all kernels that run, which may be collectives, before it loads.
            with watchdog.guard(f"loading the kernel {program}", env.timeout()):
                capability = cupy.cuda.Device().compute_capability
                module = cupy.cuda.Module()
                module.load(build(program, f"sm_{capability}"))
                function = self._functions[key] = module.get_function(program.name)
        return function

    def __call__(self, program: Program, blocks: int, argument: NDArray[Any]) -> None:
        """Launch `blocks` blocks of a program; with none there is nothing to do."""
        if blocks:
            self.load(program)((blocks,), (THREADS,), (argument,))
