"""Casts between float32 and words of 16 bits: float16, and bfloat16 without a package for it.

NumPy has no bfloat16, and ``ml_dtypes`` may not be installed.  So bfloat16 is an array of uint16
with the same bits here.  The casts are made in C if the kernels in C are active.
"""

from __future__ import annotations

import numpy as np

from ncclkv.kernels.base import Array
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.chunks import ranges

TILE = 16 * 1024
"""Elements of a tile of NumPy's."""


def narrow(values: Array, words: Array) -> None:
    """Round `values` to nearest, ties to even; a NaN stays one.

    Parameters
    ----------
    values : ndarray of float32, shape (n,)
    words : ndarray of float16, or of uint16 for bfloat16, shape (n,)
        Shares no memory with `values`.

    Examples
    --------
    >>> words = np.empty(2, np.uint16)
    >>> narrow(np.array([1.0, -3.3e38], np.float32), words)
    >>> [hex(word) for word in words.tolist()]
    ['0x3f80', '0xff78']
    """
    if compiled.active and compiled.cast(words, values):
        return
    if words.dtype.kind == "f":
        with np.errstate(all="ignore"):
            np.copyto(words, values, casting="unsafe")
        return
    for part in ranges(values.size, TILE):
        bits = np.ascontiguousarray(values[part]).view(np.uint32)
        is_nan = np.isnan(values[part])
        rounded = bits >> np.uint32(16) & np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += bits
        # Rounding up would make infinity or zero of a NaN; so it is made quiet in its place.
        np.bitwise_or(bits, np.uint32(0x400000), out=rounded, where=is_nan)
        rounded >>= np.uint32(16)
        words[part] = rounded


def narrow_with_rest(gradients: Array, residual: Array, words: Array) -> None:
    """Add gradients to the residual, and round the sums; the residual becomes what this has lost.

    The residual becomes 0 where a word is infinite or NaN.  So such a value is sent once.

    Parameters
    ----------
    gradients : ndarray of float32, shape (n,)
    residual : ndarray of float32, shape (n,)
    words : ndarray of float16, or of uint16 for bfloat16, shape (n,)
        No two arrays share memory.

    Examples
    --------
    >>> residual, words = np.array([0.25, 0.0], np.float32), np.empty(2, np.float16)
    >>> narrow_with_rest(np.array([1024, 7e4], np.float32), residual, words)
    >>> words.tolist(), residual.tolist()
    ([1024.0, inf], [0.25, 0.0])
    """
    if compiled.active and compiled.narrow_with_rest(gradients, residual, words):
        return
    sent = np.empty(min(TILE, words.size), np.float32)
    with np.errstate(all="ignore"):
        for part in ranges(words.size, TILE):
            tile, left = sent[: part.stop - part.start], residual[part]
            left += gradients[part]
            narrow(left, words[part])
            widen(words[part], tile)
            left -= tile
            left[~np.isfinite(tile)] = 0


def widen(words: Array, values: Array) -> None:
    """Set `values` to the floats of `words`, the opposite of `narrow`; nothing is rounded.

    Examples
    --------
    >>> values = np.empty(2, np.float32)
    >>> widen(np.array([0x3F80, 0xC000], np.uint16), values)
    >>> values
    array([ 1., -2.], dtype=float32)
    """
    if compiled.active and compiled.cast(values, words):
        return
    if words.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            values[...] = words
        return
    for part in ranges(values.size, TILE):
        bits = words[part].astype(np.uint32)
        bits <<= np.uint32(16)
        values[part] = bits.view(np.float32)
