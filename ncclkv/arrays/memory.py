"""Where arrays lie, NumPy's and CuPy's alike: addresses and overlaps; no element is touched."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""A `numpy.ndarray` or a `cupy.ndarray`."""


def address(array: Array) -> int:
    """Where the array's first element lies."""
    where: int
    if isinstance(array, np.ndarray):
        where = array.__array_interface__["data"][0]
    else:
        where = array.data.ptr
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
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return True
    try:
        return bool(np.shares_memory(one, other, max_work=10_000))  # type: ignore[arg-type]  # any count is right
    except np.exceptions.TooHardError:
        return True


def protect(array: Array) -> None:
    """Make an array read-only, where its library has such arrays; CuPy has none."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False


def is_on_host(array: Array) -> bool:
    """Tell whether an array is NumPy's."""
    return isinstance(array, np.ndarray)
