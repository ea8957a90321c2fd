"""Views of users' arrays: NumPy arrays of host memory, CuPy arrays of a GPU's memory.

Each array library has a module here with two functions, ``recognises`` and ``view``.
No module imports its library: an array of a library that was never imported cannot exist.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays import cupy, device, dlpack, mxnet, numpy, torch
from ncclkv.arrays.memory import is_on_host
from ncclkv.arrays.number import is_number
from ncclkv.errors import UsageError

Array = NDArray[Any]


class _Library(Protocol):
    """Interface of the module of an array library."""

    def recognises(self, x: Any) -> bool: ...
    def view(self, x: Any, what: str, *, write: bool) -> Array: ...


_HOST: tuple[_Library, ...] = (numpy, torch, mxnet, device, dlpack)
"""Modules that view arrays for stores in host memory, in the order of their checks.

`device` refuses arrays in a GPU's memory, with the call that copies them to the host.
"""

_GPU: tuple[_Library, ...] = (numpy, cupy, torch, mxnet, dlpack)
"""Modules that view arrays for stores in a GPU's memory, which take arrays of both memories."""


def as_value(x: Any, what: str) -> Array:
    """View an array to read from.

    Parameters
    ----------
    x : array
        A NumPy array or NumPy scalar, a torch tensor or an NDArray of MXNet in host memory, or any
        other array in host memory that offers DLPack.  Any shape, strides and dtype; it may be
        read-only.
    what : str
        The call and the key, which begin an error's text.

    Returns
    -------
    ndarray
        The same memory; a copy for NumPy scalars and for torch tensors that conjugate or negate
        lazily.

    Raises
    ------
    UsageError
        When `x` is no array, or a masked array.
    NotSupported
        When its memory is not the host's, or its layout is not strided.

    Examples
    --------
    >>> as_value(np.float32(3), "push of key 3")
    array(3., dtype=float32)
    >>> as_value(3.0, "push of key 3")
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: push of key 3: a float is not an array; a list means several \
arrays: pass np.asarray(...)
    """
    if type(x) is np.ndarray:
        return x
    return _view(x, what, _HOST, write=False)


def as_out(x: Any, what: str) -> Array:
    """View an array to write into.

    Parameters
    ----------
    x : array
        As for `as_value`, of memory that can be written.  A torch tensor that requires grad is
        written through its detached view.
    what : str
        The call and the key, which begin an error's text.

    Returns
    -------
    ndarray
        The same memory, writable.

    Raises
    ------
    UsageError
        When `x` is no array or cannot be written, or when elements of it share memory.
    NotSupported
        When its memory is not the host's, or its layout is not strided.

    Examples
    --------
    >>> weights = np.zeros(2)
    >>> as_out(weights, "pull of key 3") is weights
    True
    >>> as_out(np.broadcast_to(weights, (4, 2)), "pull of key 3")
    Traceback (most recent call last):
        ...
    ncclkv.errors.UsageError: pull of key 3: out is read-only; pass an array that can be written
    """
    return _writable(x if type(x) is np.ndarray else _view(x, what, _HOST, write=True), what)


def as_gpu_value(x: Any, what: str) -> Array:
    """View an array to read from, for a store in a GPU's memory.

    As `as_value`; arrays in a GPU's memory (CuPy's, torch's, or with ``__cuda_array_interface__``)
    become CuPy arrays.
    """
    if type(x) is np.ndarray:
        return x
    return _view(x, what, _GPU, write=False)


def as_gpu_out(x: Any, what: str) -> Array:
    """View an array to write into, for a store in a GPU's memory; as `as_out` otherwise."""
    return _writable(x if type(x) is np.ndarray else _view(x, what, _GPU, write=True), what)


def _writable(array: Array, what: str) -> Array:
    """Refuse an array that cannot be written; CuPy's arrays do not show whether they can."""
    if is_on_host(array) and not array.flags.writeable:
        raise UsageError(f"{what}: out is read-only; pass an array that can be written")
    if not array.flags.c_contiguous and _repeats(array):
        raise UsageError(
            f"{what}: elements of out share memory (strides {array.strides}), so it cannot hold "
            "a value; pass a copy of it"
        )
    return array


def _view(x: Any, what: str, libraries: tuple[_Library, ...], *, write: bool) -> Array:
    """View an array by the first of `libraries` that recognises it."""
    for library in libraries:
        try:
            recognised = library.recognises(x)
        except Exception as error:  # raised by a property of the user's class
            raise UsageError(
                f"{what}: {device.describe(x)} raised an exception when it was examined "
                f"({type(error).__name__}: {error}); pass it as a NumPy array"
            ) from error
        if recognised:
            return library.view(x, what, write=write)
    if write and is_number(x):
        raise UsageError(
            f"{what}: out is a Python {type(x).__name__}, which cannot be written; pass an "
            "array of shape () as out"
        )
    raise UsageError(_not_an_array(x, what))


def _not_an_array(x: Any, what: str) -> str:
    """Return the text of the error for an object that is no array."""
    if is_number(x):
        advice = "a list means several arrays: pass np.asarray(...)"
    else:
        advice = "pass a NumPy array, a torch tensor, or an array that offers DLPack"
    name = type(x).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    subject = "None" if x is None else f"{article} {name}"
    return f"{what}: {subject} is not an array; {advice}"


def _repeats(array: Array) -> bool:
    """Return whether elements of one array overlap, as with a stride of 0."""
    if not array.size:
        return False
    covered = array.itemsize
    steps = zip(map(abs, array.strides), array.shape, strict=True)
    for stride, length in sorted((stride, length) for stride, length in steps if length > 1):
        if stride < covered:
            return True
        covered += stride * (length - 1)
    return False
