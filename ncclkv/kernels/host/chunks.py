"""Chunks of arrays that stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import EllipsisType
from typing import Any

import numpy as np

from ncclkv.arrays.dtype_table import TABLE
from ncclkv.kernels.base import Array

CHUNK_BYTES = 128 * 1024
"""Half of a small second-level cache, which then holds a chunk and its operand."""

Block = tuple[int | slice | EllipsisType, ...]


_WORKING = {(row.kind, row.itemsize): np.dtype(row.working) for row in TABLE if row.working}
_AVERAGED_IN = {row.kind: np.dtype(row.averaged_in) for row in TABLE if row.averaged_in}


def working_dtype(dtype: np.dtype[Any], op: str = "sum") -> np.dtype[Any]:
    """Return the dtype of arithmetic on arrays of `dtype`.

    Examples
    --------
    >>> working_dtype(np.dtype(np.float16))
    dtype('float32')
    >>> working_dtype(np.dtype(np.int8)), working_dtype(np.dtype(np.int8), "avg")
    (dtype('int8'), dtype('int64'))
    """
    working = _WORKING.get((dtype.kind, dtype.itemsize))
    if working is not None:
        return working
    # The sum may be too large for the dtype where the average is not.
    return _AVERAGED_IN.get(dtype.kind, dtype) if op == "avg" else dtype


def chunk_length(dtype: np.dtype[Any]) -> int:
    """Return the count of elements of a chunk whose arithmetic is in `dtype`."""
    return CHUNK_BYTES // dtype.itemsize


def scratch(rows: int, count: int, dtype: np.dtype[Any], op: str = "sum") -> Array:
    """Return rows of a chunk's length, for arithmetic on `count` elements of `dtype`."""
    working = working_dtype(dtype, op)
    return np.empty((rows, max(1, min(chunk_length(working), count))), working)


def ranges(count: int, length: int) -> Iterator[slice]:
    """Cut ``[0, count)`` into slices of at most `length` elements."""
    for lo in range(0, count, length):
        yield slice(lo, min(lo + length, count))


def blocks(shape: tuple[int, ...], length: int) -> Iterator[Block]:
    """Cut an array of `shape` into indices of at most `length` elements each, in C order.

    Each index selects an array, never a scalar, so the selection can be an ``out=`` argument.
    """
    if math.prod(shape) <= length:
        yield (...,)
        return
    step = length // math.prod(shape[1:])
    if step:
        for rows in ranges(shape[0], step):
            yield (rows, ...)
        return
    for row in range(shape[0]):
        for block in blocks(shape[1:], length):
            yield (row, *block)
