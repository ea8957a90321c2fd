"""Addresses and overlaps of NumPy and CuPy arrays; no element is read."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""A `numpy.ndarray` or a `cupy.ndarray`."""

FEW = 8
"""Count of arrays up to which a loop in Python takes no longer than calls of NumPy."""

_nbytes_of = attrgetter("nbytes")


def address(array: Array) -> int:
    """Return the address of the first element."""
    where: int
    if not isinstance(array, np.ndarray):
        where = array.data.ptr
    elif array.flags.carray and array.size and array.dtype.kind in "biufc":
        # Three times as fast as `ndarray.ctypes`, which runs Python code.
        memory: Any = array
        where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    else:
        where = array.ctypes.data
    return where


def addresses(arrays: Sequence[Array]) -> NDArray[np.intp] | None:
    """Return the address of each array, without a loop in Python; None if some array prevents it.

    NumPy gives the address of an array with elements, in C order, that can be written.
    """
    buffers = map(ctypes.c_char.from_buffer, arrays)
    try:
        return np.fromiter(map(ctypes.addressof, buffers), np.intp, len(arrays))
    except (TypeError, ValueError, BufferError):
        return None


def lie_apart(arrays: Sequence[Array], begins: NDArray[np.intp]) -> bool:
    """Return whether no two arrays, which begin at these addresses, share memory.

    The arrays are contiguous, as those of `addresses` are.
    """
    order = begins.argsort()
    ends = begins + np.fromiter(map(_nbytes_of, arrays), np.intp, len(arrays))
    return bool((ends[order][:-1] <= begins[order][1:]).all())


def bounds(array: Array) -> tuple[int, int]:
    """Return the address of the first byte, and the address past the last byte."""
    low = high = address(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def identity(array: Array) -> tuple[Any, ...]:
    """Return a value that is equal for two views of the same elements."""
    return (address(array), array.shape, array.strides, array.dtype)


def identities(arrays: Sequence[Array]) -> Sequence[Hashable]:
    """Return a value for each array, equal for two views of the same elements of the list."""
    begins = addresses(arrays) if len(arrays) > FEW else None
    if begins is not None and len(np.unique(begins)) == len(arrays):
        listed: list[int] = begins.tolist()
        return listed
    return [identity(array) for array in arrays]


def same_memory(arrays: Sequence[Array], views: Sequence[Array]) -> list[Array]:
    """Return for each array the view of the same elements, or the array if there is none."""
    found = dict(zip(identities(views), views, strict=True))
    return [found.get(key, array) for key, array in zip(identities(arrays), arrays, strict=True)]


def share(one: Array, other: Array) -> bool:
    """Return whether two arrays with overlapping bounds may share an element."""
    try:
        return bool(np.shares_memory(_as_numpy(one), _as_numpy(other), max_work=10_000))  # type: ignore[arg-type]  # any count is right
    except np.exceptions.TooHardError:
        return True


def protected(flat: Array) -> Array:
    """Return a view that cannot be made writable; CuPy has no such views, so return its array."""
    if not isinstance(flat, np.ndarray):
        return flat
    if not flat.size:  # an empty array has no buffer
        view = flat.view()
        view.flags.writeable = False
        return view
    # As bytes, since bfloat16 has no buffer format.
    in_bytes: Any = flat.view(np.uint8)
    return np.frombuffer(memoryview(in_bytes).toreadonly(), np.uint8).view(flat.dtype)


def is_on_host(array: Array) -> bool:
    """Return whether an array is NumPy's."""
    return isinstance(array, np.ndarray)


def _as_numpy(array: Array) -> Array:
    """Return a NumPy array with the addresses of `array`, for comparisons of addresses.

    No element of the result may be read: it may have the addresses of a GPU's memory.
    """
    if isinstance(array, np.ndarray):
        return array
    interface = {
        "version": 3,
        "shape": array.shape,
        "strides": array.strides,
        "typestr": f"|V{array.itemsize}",
        "data": (address(array), False),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
