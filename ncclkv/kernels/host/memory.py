"""New arrays in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.kernels.base import Array
from ncclkv.kernels.host import compiled


def zeros(count: int, dtype: np.dtype[Any]) -> Array:
    """Return a new flat array of zeros."""
    return np.zeros(count, dtype)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array with undefined elements."""
    return np.empty(shape, dtype)


def left() -> None:
    """Return None: the free memory of a node is shared by its ranks."""


def fill(array: Array, value: float) -> None:
    """Set every element of `array` to a number."""
    array.fill(value)


def copy(array: Array) -> Array:
    """Return a contiguous copy that shares no memory."""
    return np.array(array, order="C", copy=True, subok=False)


def move(target: Array, source: Array, whole: int) -> None:
    """Copy a flat array; with non-temporal stores if `whole`, the bytes of all parts, is large."""
    stream = compiled.active and whole >= compiled.STREAM_BYTES
    if not (stream and compiled.copy(target, source, True)):
        target[...] = source
