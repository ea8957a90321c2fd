"""The elements of largest magnitude in an array; in C if the kernels in C are active.

A pass over tiles collects candidates: all elements whose magnitude is at least a floor.  When there
are many candidates, only the largest are kept, and the floor rises above them.  No array as long as
the gradients is allocated.

Magnitudes are compared as integers, because the bits without the sign have the same order.  All
NaNs are equal, and larger than infinity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.kernels.base import Array
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import ranges

TILE = 16 * 1024
"""Elements of a tile of NumPy's."""

SIZE_OF_NAN = np.uint32(0x7F800001)


def take_largest(gradients: Array, residual: Array, payload: Array) -> None:
    """Add gradients to the residual, and move the largest sums from there to the payload.

    Parameters
    ----------
    gradients : ndarray of float32, shape (n,)
    residual : ndarray of float32, shape (n,)
        Shares no memory with the gradients.
    payload : ndarray of uint8, shape (8 * k,)
        Receives k indices of int32 in ascending order, and then k values of float32.  Of equal
        magnitudes the first are moved.

    Examples
    --------
    >>> residual, payload = np.zeros(4, np.float32), np.empty(16, np.uint8)
    >>> take_largest(np.array([1, -3, 2, -2], np.float32), residual, payload)
    >>> payload[:8].view(np.int32), payload[8:].view(np.float32), residual
    (array([1, 2], dtype=int32), array([-3.,  2.], dtype=float32), \
array([ 1.,  0.,  0., -2.], dtype=float32))
    """
    if compiled.active and compiled.take_largest(gradients, residual, payload):
        return
    wanted = payload.size // 8
    if wanted == 0:
        return
    indices, values = parts_of(payload)
    found = _candidates(gradients, residual, wanted)
    indices[...] = found
    values[...] = residual[found]
    residual[found] = 0


def add_largest(payload: Array, sums: Array) -> None:
    """Add the values of a payload to `sums`, an ndarray of float32, at their indices.

    Raises
    ------
    ValueError
        For an index that `sums` does not have.
    """
    if compiled.active and compiled.add_largest(payload, sums):
        return
    indices, values = parts_of(payload)
    wrong = indices.view(np.uint32) >= sums.size
    if wrong.any():
        index = indices.view(np.uint32)[wrong][0]
        raise ValueError(f"a payload has index {index}, of {sums.size} elements")
    with np.errstate(all="ignore"):
        sums[indices] += values


def parts_of(payload: Array) -> tuple[Array, Array]:
    """Return views of the indices and of the values of a payload."""
    half = payload.size // 2
    return payload[:half].view(np.int32), payload[half:].view(np.float32)


def _candidates(gradients: Array, residual: Array, wanted: int) -> Array:
    """Add gradients to the residual by tiles; return the indices of the largest sums."""
    most = 2 * wanted + TILE
    found, collected, floor = [(np.empty(0, np.int64), np.empty(0, np.uint32))], 0, np.uint32(0)
    with np.errstate(all="ignore"):
        for part in ranges(gradients.size, TILE):
            sums = residual[part]
            sums += gradients[part]
            sizes = _sizes_of(sums)
            large = np.flatnonzero(sizes >= floor)
            found.append((large + part.start, sizes[large]))
            collected += large.size
            if collected > most:
                *largest, floor = _largest(found, wanted)
                found, collected = [(largest[0], largest[1])], wanted
    return _largest(found, wanted)[0]


def _sizes_of(sums: Array) -> Array:
    """Return the bits of magnitudes, which have the order of the magnitudes."""
    bits = np.ascontiguousarray(sums).view(np.uint32) & np.uint32(0x7FFFFFFF)
    np.minimum(bits, SIZE_OF_NAN, out=bits)
    sizes: Array = bits
    return sizes


def _largest(found: Sequence[tuple[Array, Array]], wanted: int) -> tuple[Array, Array, np.uint32]:
    """Return indices and sizes of the largest candidates, of equal ones the first.

    The last result is the floor above them.
    """
    indices, sizes = (np.concatenate(each) for each in zip(*found, strict=True))
    if sizes.size <= wanted:
        return indices, sizes, np.uint32(0)
    least = np.partition(sizes, sizes.size - wanted)[sizes.size - wanted]
    kept = sizes > least
    ties = np.flatnonzero(sizes == least)
    kept[ties[: wanted - np.count_nonzero(kept)]] = True
    return indices[kept], sizes[kept], np.uint32(least + 1)
