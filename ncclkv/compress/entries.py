"""Encoding by entries: the keys of a range, between which there may be padding.

Padding is not encoded: its codes are 0, which a codec may decode to another value than 0.  So what
is decoded is cleared there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from ncclkv.compress.base import Codec
from ncclkv.kernels.base import Array

Bounds = Sequence[tuple[int, int]]
"""Elements ``[lo, hi)`` of each entry of a range, in their order; those of an empty one are equal.

Each that is not empty begins at a multiple of the codec's `unit`.
"""


def encode_entries(
    codec: Codec, entries: Bounds, gradients: Array, residual: Array, payload: Array
) -> list[int]:
    """Encode each entry of a range; parameters are those of `Codec.encode`, for the whole range.

    Returns
    -------
    list of int
        What `Codec.encode` has returned, by entry.
    """
    beyond, end = [], 0
    for lo, hi in entries:
        if lo == hi:
            beyond.append(0)
            continue
        start = codec.nbytes(lo)
        payload[end:start] = 0
        end = start + codec.nbytes(hi - lo)
        beyond.append(codec.encode(gradients[lo:hi], residual[lo:hi], payload[start:end]))
    payload[end:] = 0
    return beyond


def clear_padding(entries: Bounds, start: int, out: Array) -> None:
    """Set what no entry has to 0, in elements ``[start, start + out.size)`` of the range.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.ones(6)
    >>> clear_padding([(0, 3), (4, 6)], 2, out)
    >>> out
    array([1., 0., 1., 1., 0., 0.])
    """
    for lo, hi in padding(entries, start + out.size):
        if hi > start:
            out[max(lo - start, 0) : hi - start] = 0


def padding(entries: Bounds, count: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges below `count` that no entry has.

    Examples
    --------
    >>> list(padding([(0, 3), (16, 17), (17, 17)], 32))
    [(3, 16), (17, 32)]
    """
    end = 0
    for lo, hi in chain(entries, [(count, count)]):
        if end < min(lo, count):
            yield end, min(lo, count)
        end = hi
        if end >= count:
            return
