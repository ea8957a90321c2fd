"""Arguments of kernels: one C structure by value each, as the sources in ``cuda/`` declare it.

A launch copies its argument, so nothing has to be uploaded, kept until a stream has passed, or
freed.  4096 bytes is what every driver takes, which bounds the pieces of a launch; more pieces take
more launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.host.checksum import BLOCK_BYTES

PIECES = 128
"""Copies, or segments, of one launch at most."""

PARTS = 256
"""Arrays that one launch combines at most."""

COPY_BYTES = 32 * 1024
"""Bytes that one block copies at most: eight times 16 bytes for each of its threads."""

UPDATED_ELEMENTS = 8192
"""Elements that one block updates at most; a multiple of 16 bytes in every dtype."""

SUMMED_BYTES = BLOCK_BYTES
"""Bytes that one block sums: as on the host, since the sum depends on the blocks."""

ADDRESS = np.uint64

COPIES = np.dtype(
    [
        ("source", ADDRESS, (PIECES,)),
        ("destination", ADDRESS, (PIECES,)),
        ("nbytes", np.uint64, (PIECES,)),
        ("skip", ADDRESS),
        ("first", np.uint32, (PIECES + 1,)),
        ("count", np.uint32),
    ],
    align=True,
)
"""The argument of ``copy``."""

COMBINATION = np.dtype(
    [
        ("part", ADDRESS, (PARTS,)),
        ("partial", ADDRESS),
        ("out", ADDRESS),
        ("size", np.uint64),
        ("divisor", np.uint64),
        ("count", np.uint32),
        ("continues", np.uint32),
        ("ends", np.uint32),
    ],
    align=True,
)
"""The argument of ``combine``."""

MOST_STATES = 4
"""States of a weight at most."""

UPDATES = np.dtype(
    [
        ("weights", ADDRESS),
        ("gradients", ADDRESS),
        ("states", ADDRESS, (MOST_STATES,)),
        ("start", np.uint64, (PIECES + 1,)),
        ("scalars", ADDRESS),
        ("skip", ADDRESS),
        ("first", np.uint32, (PIECES + 1,)),
        ("count", np.uint32),
    ],
    align=True,
)
"""The argument of the kernels of ``update.cu``."""

SUMS = np.dtype(
    [
        ("source", ADDRESS, (PIECES,)),
        ("nbytes", np.uint64, (PIECES,)),
        ("out", ADDRESS),
        ("first", np.uint32, (PIECES + 1,)),
        ("count", np.uint32),
    ],
    align=True,
)
"""The argument of ``checksum``."""

SEARCH = np.dtype(
    [
        ("words", ADDRESS),
        ("flag", ADDRESS),
        ("size", np.uint64),
    ],
    align=True,
)
"""The argument of ``nonfinite``."""


def new(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an argument of zeros: a 0-dimensional array, which CuPy passes by value."""
    return np.zeros((), dtype)


def batches(count: int, most: int) -> Iterator[slice]:
    """Cut `count` pieces into slices of at most `most`."""
    for low in range(0, count, most):
        yield slice(low, min(low + most, count))


def first_blocks(sizes: NDArray[np.int64], per_block: int) -> NDArray[np.int64]:
    """Return the first block of each piece, and after the last the number of blocks.

    Parameters
    ----------
    sizes : ndarray of int64, shape (n,)
        Of the pieces; one of size 0 gets no block.
    per_block : int
        What one block does at most, in the unit of `sizes`.

    Returns
    -------
    ndarray of int64, shape (n + 1,)

    Examples
    --------
    >>> first_blocks(np.array([10, 0, 25]), 10)
    array([0, 1, 1, 4])
    """
    first = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(-(-sizes // per_block), out=first[1:])
    return first
