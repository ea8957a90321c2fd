"""Where arrays lie, NumPy's and CuPy's alike: addresses and overlaps; no element is touched."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A `numpy.ndarray` or a `cupy.ndarray`."""


def address(array: Array) -> int:
    """Where the array's first element lies."""
    where: int
    if not isinstance(array, np.ndarray):
        where = array.data.ptr
    elif array.flags.carray and array.size and array.dtype.kind in "biufc":
        # Three times as fast as NumPy's own ways, which go through Python.
        memory: Any = array
        where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    else:
        where = array.ctypes.data
    return where


def bounds(array: Array) -> tuple[int, int]:
    """The addresses of the first byte and past the last one."""
    low = high = address(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def identity(array: Array) -> tuple[Any, ...]:
    """What two views have in common when they are the same array."""
    return (address(array), array.shape, array.strides, array.dtype)


def share(one: Array, other: Array) -> bool:
    """Tell whether two arrays whose bounds overlap share an element; if it is hard to tell, yes."""
    try:
        return bool(np.shares_memory(_shadow(one), _shadow(other), max_work=10_000))  # type: ignore[arg-type]  # any count is right
    except np.exceptions.TooHardError:
        return True


def protected(flat: Array) -> Array:
    """A view of a flat array that nobody can make writable; of CuPy's, which has none, itself."""
    if not isinstance(flat, np.ndarray):
        return flat
    if not flat.size:  # which no buffer has, and nothing can be written to
        view = flat.view()
        view.flags.writeable = False
        return view
    # Through bytes, since not every dtype has a buffer of its own.
    in_bytes: Any = flat.view(np.uint8)
    return np.frombuffer(memoryview(in_bytes).toreadonly(), np.uint8).view(flat.dtype)


def is_on_host(array: Array) -> bool:
    """Tell whether an array is NumPy's."""
    return isinstance(array, np.ndarray)


class _Shape:
    """An array that is elsewhere, as NumPy takes it for its own."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
            "data": (address(array), False),
        }


def _shadow(array: Array) -> Array:
    """A NumPy array of the same addresses, to be compared and never read."""
    return array if isinstance(array, np.ndarray) else np.asarray(_Shape(array))
