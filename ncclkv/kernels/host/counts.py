"""Sums of codes, and their packed form; in C if the kernels in C are active.

A code of few bits stands for a level: 0, 1, ....  A sum of levels is an unsigned integer of 16
bits.  So four of them are added as one word, without a carry from one to the next.
"""

from __future__ import annotations

import numpy as np

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import ranges

TILE = 16 * 1024
"""Elements of a tile of NumPy's: a multiple of the codes of every word."""


def count_levels(levels: Array, payloads: Arrays, counts: Array) -> None:
    """Set `counts` to the sums of the levels of the payloads' codes.

    Parameters
    ----------
    levels : ndarray of uint16, shape (256, 4) or (256, 8)
        For each byte, the level of each of its codes.
    payloads : sequence of ndarray of uint8
        At least one; each has a code for each of the `counts`.
    counts : ndarray of uint16
        No sum may have more than 16 bits.

    Examples
    --------
    >>> bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.uint16)
    >>> counts, payloads = np.empty(3, np.uint16), np.array([[0b11000000], [0b01000000]], np.uint8)
    >>> count_levels(bits, payloads, counts)
    >>> counts
    array([1, 2, 0], dtype=uint16)
    """
    if compiled.active and compiled.count_levels(levels, payloads, counts):
        return
    per_byte, words = levels.shape[1], levels.view(np.uint64)
    totals, others = np.empty((2, TILE // per_byte, words.shape[1]), np.uint64)
    for part in ranges(counts.size, TILE):
        chunk = counts[part]
        start, size = part.start // per_byte, -(-chunk.size // per_byte)
        total, other = totals[:size], others[:size]
        for index, payload in enumerate(payloads):
            found = other if index else total
            # "raise" would copy the result once more.
            np.take(words, payload[start : start + size], axis=0, out=found, mode="clip")
            if index:
                total += other
        chunk[...] = total.reshape(-1).view(np.uint16)[: chunk.size]


def scale_counts(counts: Array, offset: float, factor: float, out: Array) -> None:
    """Set `out`, of float32, to ``(counts + offset) * factor``.

    Examples
    --------
    >>> out = np.empty(3, np.float32)
    >>> scale_counts(np.array([0, 2, 4], np.uint16), -2.0, 0.5, out)
    >>> out
    array([-1.,  0.,  1.], dtype=float32)
    """
    if compiled.active and compiled.scale_counts(counts, offset, factor, out):
        return
    for part in ranges(counts.size, TILE):
        chunk = out[part]
        np.add(counts[part], np.float32(offset), out=chunk, dtype=np.float32)
        chunk *= np.float32(factor)


def packed_nbytes(count: int, width: int) -> int:
    """Return the bytes of packed counts of a width in bits.

    Examples
    --------
    >>> packed_nbytes(5, 4)
    3
    """
    return -(-count * width // 8)


def pack_counts(counts: Array, packed: Array, width: int) -> None:
    """Pack counts into 2, 4, 8 or 16 bits each, the first in a byte's most significant bits.

    Parameters
    ----------
    counts : ndarray of uint16
        Each below ``2**width``.
    packed : ndarray of uint8
        Of `packed_nbytes`; the last bits are 0.
    width : int

    Examples
    --------
    >>> packed = np.empty(2, np.uint8)
    >>> pack_counts(np.array([1, 2, 15], np.uint16), packed, 4)
    >>> packed
    array([ 18, 240], dtype=uint8)
    """
    if width == 16:
        packed.view(np.uint16)[...] = counts
        return
    if compiled.active and compiled.pack_counts(counts, packed, width):
        return
    per_byte = 8 // width
    digits = np.zeros(TILE, np.uint8)
    for part in ranges(counts.size, TILE):
        size = part.stop - part.start
        digits[:size] = counts[part]
        digits[size:] = 0
        rows = digits.reshape(-1, per_byte)[: packed_nbytes(size, width)]
        start = part.start // per_byte
        chunk = packed[start : start + len(rows)]
        chunk[...] = 0
        for column in range(per_byte):
            chunk |= rows[:, column] << np.uint8(8 - width * (column + 1))


def unpack_counts(packed: Array, counts: Array, width: int) -> None:
    """Set `counts` to those in `packed`, the opposite of `pack_counts`.

    Examples
    --------
    >>> counts = np.empty(3, np.uint16)
    >>> unpack_counts(np.array([18, 240], np.uint8), counts, 4)
    >>> counts
    array([ 1,  2, 15], dtype=uint16)
    """
    if width == 16:
        counts[...] = packed.view(np.uint16)
        return
    if compiled.active and compiled.unpack_counts(packed, counts, width):
        return
    per_byte, ones = 8 // width, np.uint8((1 << width) - 1)
    digits = np.empty(TILE, np.uint8).reshape(-1, per_byte)
    for part in ranges(counts.size, TILE):
        chunk, start = counts[part], part.start // per_byte
        parts = packed[start : start + packed_nbytes(chunk.size, width)]
        for column in range(per_byte):
            digits[: parts.size, column] = parts >> np.uint8(8 - width * (column + 1)) & ones
        chunk[...] = digits.reshape(-1)[: chunk.size]
