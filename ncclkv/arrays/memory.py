"""Addresses and overlaps of arrays, NumPy's and CuPy's; no element is read."""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A `numpy.ndarray` or a `cupy.ndarray`."""


def address(array: Array) -> int:
    """Return the address of the first element."""
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
    """Return the address of the first byte, and the address past the last byte."""
    low = high = address(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def identity(array: Array) -> tuple[Any, ...]:
    """Return a value that two views of the same array share."""
    return (address(array), array.shape, array.strides, array.dtype)


def share(one: Array, other: Array) -> bool:
    """Return whether two arrays with overlapping bounds may share an element."""
    try:
        return bool(np.shares_memory(_shadow(one), _shadow(other), max_work=10_000))  # type: ignore[arg-type]  # any count is right
    except np.exceptions.TooHardError:
        return True


def protected(flat: Array) -> Array:
    """Return a view that cannot be made writable; CuPy has none, so its array itself."""
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
    """Return whether an array is NumPy's."""
    return isinstance(array, np.ndarray)


class _Shape:
    """Stand-in for an array in other memory, through NumPy's array interface."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
            "data": (address(array), False),
        }


def _shadow(array: Array) -> Array:
    """Return a NumPy array of the same addresses; its elements must not be read."""
    return array if isinstance(array, np.ndarray) else np.asarray(_Shape(array))
