"""Images of kernels, loaded and launched on memory of the host without a CUDA runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class _Launch(ctypes.Structure):
    """The struct ``emulated::Launch`` of kernel.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("first", ctypes.c_ulonglong),
    )


class KernelError(Exception):
    """Error of a failed launch.

    Attributes
    ----------
    code : int
        Code of cudaError_t.
    """

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class HostModule:
    """An image, loaded into this process.

    Parameters
    ----------
    image : pathlib.Path
    """

    def __init__(self, image: Path) -> None:
        self._library = ctypes.CDLL(str(image))

    def sizes(self, name: str) -> list[int]:
        """Return the sizes of a kernel's arguments in bytes."""
        return list(self._sizes(name))

    def _sizes(self, name: str) -> Iterator[int]:
        begin = ctypes.addressof(ctypes.c_uint.in_dll(self._library, f"emulated_arguments_{name}"))
        for place in range(begin, begin + 4 * 65, 4):
            size = ctypes.c_uint.from_address(place).value
            if not size:
                return
            yield size

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared: int = 0,
        first: int = 0,
    ) -> None:
        """Run a kernel, and return after its end.

        Parameters
        ----------
        name : str
        grid, block : int or sequence of int
            Sizes in blocks and in threads.
        arguments : sequence
            NumPy arrays go as pointers; NumPy scalars and arrays of no dimensions, as values.
        shared : int, optional
            Bytes of dynamic shared memory.
        first : int, optional
            Blocks before this one are not run.

        Raises
        ------
        KernelError
        """
        values = [_value(argument).tobytes() for argument in arguments]
        assert [len(value) for value in values] == self.sizes(name)
        _memory, pointers = _at_odd_addresses(values)  # it must live until the end of the launch
        launch = _Launch(_three(grid), _three(block), shared, first)
        words = ctypes.c_char_p()
        run = getattr(self._library, f"emulated_run_{name}")
        code = run(ctypes.byref(launch), pointers, ctypes.byref(words))
        if code:
            assert words.value
            raise KernelError(code, words.value.decode())


def _at_odd_addresses(values: Sequence[bytes]) -> tuple[Any, Any]:
    """Return values in memory, and unaligned pointers to them, as a launch allows."""
    memory = ctypes.create_string_buffer(sum(1 + len(value) for value in values) + 1)
    pointers = (ctypes.c_void_p * len(values))()
    place = ctypes.addressof(memory)
    for index, value in enumerate(values):
        place += 1 - place % 2
        ctypes.memmove(place, value, len(value))
        pointers[index] = place
        place += len(value)
    return memory, pointers


def _value(argument: Any) -> np.ndarray[Any, Any]:
    if isinstance(argument, np.ndarray) and argument.ndim:
        return np.array(argument.ctypes.data, np.uint64)
    return np.asarray(argument)


def _three(size: int | Sequence[int]) -> Any:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (ctypes.c_uint * 3)(*(*sizes, 1, 1)[:3])
