"""Checksums of arrays, by which ranks compare their values.

The bytes in C order make words of 64 bits in the machine's order; zeros fill up the last word.
All arithmetic is modulo 2^64.  Word j of a block is ``mixed(word + (j + 1) * STEP)``, where ::

    mixed(x):  x ^= x >> 32;  x *= FIRST;  x ^= x >> 29;  return x * SECOND

(the finaliser of SplitMix64 without its last line: Steele, Lea and Flood 2014).  The sum of the
words of block b is multiplied by ``(2 b + 1) * FACTOR``.  So every bit and its position count:
another array has the same checksum only by chance, with a probability of about 2^-60.  The kernel
in C repeats these constants; the kernel of devices gets them from this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.base import Array, Arrays
from ncclkv.kernels.host import compiled

BLOCK_BYTES = 64 * 1024
"""Length of a block, which fits into a second-level cache with its scratch memory."""

STEP = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
FACTOR = 0xD6E8FEB86659FD93

_WORD_BYTES = 8
_MODULUS = 2**64
_STEPS = np.arange(1, BLOCK_BYTES // _WORD_BYTES + 1, dtype=np.uint64) * np.uint64(STEP)

Words = NDArray[np.uint64]


def checksums(arrays: Arrays) -> Words:
    """Return the checksum of each array's bytes in C order, for any strides."""
    scratch = np.empty((2, _STEPS.size), np.uint64)
    return np.array([checksum(array, scratch) for array in arrays], np.uint64)


def checksum(array: Array, scratch: Words) -> int:
    """Return the checksum of one array; `scratch` has two rows of the length of a block."""
    if compiled.active and array.flags.c_contiguous:
        return compiled.checksum(array, BLOCK_BYTES)
    flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    step = BLOCK_BYTES // array.itemsize
    total = 0
    for index, lo in enumerate(range(0, array.size, step)):
        block = _block(_words(flat[lo : lo + step]), scratch)
        total += block * (2 * index + 1) * FACTOR
    return total % _MODULUS


def _words(chunk: Array) -> Words:
    """Return the bytes of a contiguous array as words."""
    tail = chunk.nbytes % _WORD_BYTES
    if not tail:
        return chunk.view(np.uint64)
    words = np.zeros(chunk.nbytes // _WORD_BYTES + 1, np.uint64)
    words.view(np.uint8)[: chunk.nbytes] = chunk.view(np.uint8)
    return words


def _block(words: Words, scratch: Words) -> int:
    """Return the sum of a block's mixed words."""
    x, high = scratch[:, : words.size]
    np.add(words, _STEPS[: words.size], out=x)
    np.right_shift(x, 32, out=high)
    np.bitwise_xor(x, high, out=x)
    np.multiply(x, FIRST, out=x)
    np.right_shift(x, 29, out=high)
    np.bitwise_xor(x, high, out=x)
    np.multiply(x, SECOND, out=x)
    return int(np.add.reduce(x))
