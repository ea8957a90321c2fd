"""Arrays of a program in memory: slices of one array, other strides, one array for several keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.world.arrays import Array

LAYOUTS = ("plain", "kept", "same", "slices", "woven", "fortran", "reversed")

CASTS = dict(
    zip(
        ("f2", "f4", "f8", "c8", "c16", "i1", "u1", "i4", "i8", "?"),
        ("f4", "f8", "f4", "c16", "c8", "i8", "i4", "f8", "i4", "i1"),
        strict=True,
    )
)
"""Other dtypes into which a pull casts values."""


def laid_out(arrays: Sequence[Array], layout: str, kept: dict[Any, Array]) -> list[Array]:
    """Return writable copies of arrays.

    Parameters
    ----------
    layout : str
        ``kept`` arrays are those of earlier steps, ``same`` ones are one array where they are
        equal; ``slices`` lie one after another in one array, perhaps not aligned; elements of
        ``woven`` ones alternate; others have an order of their own.
    kept : dict of array
        Arrays of earlier steps for the same use, to which new ones are added.
    """
    if layout == "same":
        one = {_identity(each): each.copy() for each in arrays}
        return [one[_identity(each)] for each in arrays]
    if layout == "kept":
        made = [
            kept.setdefault((index, each.shape, each.dtype), each.copy())
            for index, each in enumerate(arrays)
        ]
    elif layout == "slices":
        made = _slices(arrays)
    elif layout == "woven":
        made = _woven(arrays)
    else:
        made = [_alone(each, layout) for each in arrays]
    for new, old in zip(made, arrays, strict=True):
        new[...] = old
    return made


def _identity(array: Array) -> tuple[object, ...]:
    return array.shape, array.dtype, array.tobytes()


def _slices(arrays: Sequence[Array]) -> list[Array]:
    whole = np.empty(sum(each.nbytes for each in arrays), "u1")
    made, begin = [], 0
    for each in arrays:
        made.append(np.ndarray(each.shape, each.dtype, whole, begin))
        begin += each.nbytes
    return made


def _woven(arrays: Sequence[Array]) -> list[Array]:
    wholes = {
        (each.shape, each.dtype): np.empty((*each.shape, len(arrays)), each.dtype)
        for each in arrays
    }
    return [wholes[each.shape, each.dtype][..., n] for n, each in enumerate(arrays)]


def _alone(array: Array, layout: str) -> Array:
    if layout == "reversed":
        backwards = (slice(None, None, -1),) * array.ndim
        return np.empty(array.shape, array.dtype)[(..., *backwards)]
    return np.empty(array.shape, array.dtype, order="F" if layout == "fortran" else "C")
