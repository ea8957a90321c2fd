"""Arguments of kernels: one C structure by value each, as the sources in ``cuda/`` declare it.

A launch copies its argument: nothing has to be uploaded, kept for a stream, or freed.  Every driver
takes 4096 bytes, which limits the pieces of a launch.  More pieces take more launches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.base import Segments
from ncclkv.kernels.host.checksum import BLOCK_BYTES
from ncclkv.kernels.host.chunks import ranges
from ncclkv.kernels.host.measure import BLOCK

THREADS = 256
"""Number of threads of a block."""

PIECES = 128
"""Maximum number of arrays or segments of one launch."""

PARTS = 256
"""Maximum number of arrays that one launch combines."""

COPY_BYTES = 32 * 1024
"""Maximum number of bytes that one block copies: eight times 16 bytes for each thread."""

COMBINED_TOGETHER = 4
"""Number of elements of a thread of ``combine`` whose loads are in flight together."""

UPDATED_ELEMENTS = 8192
"""Maximum number of elements that one block updates; a multiple of 16 bytes in every dtype."""

SUMMED_BYTES = BLOCK_BYTES
"""Number of bytes that one block sums: as on the host, because the checksum depends on it."""

ADDRESS = np.uint64

_BLOCKS = (("first", np.uint32, (PIECES + 1,)), ("count", np.uint32))
"""Fields by which a block finds its piece: each piece's first block, and the number of pieces."""

COPIES = np.dtype(
    [
        ("source", ADDRESS, (PIECES,)),
        ("destination", ADDRESS, (PIECES,)),
        ("nbytes", np.uint64, (PIECES,)),
        ("skip", ADDRESS),
        *_BLOCKS,
    ],
    align=True,
)
"""Argument of ``copy``."""

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
"""Argument of ``combine``."""

MAX_STATES = 4
"""Maximum number of states of a weight."""

UPDATES = np.dtype(
    [
        ("weights", ADDRESS),
        ("gradients", ADDRESS),
        ("states", ADDRESS, (MAX_STATES,)),
        ("master", ADDRESS),
        ("start", np.uint64, (PIECES + 1,)),
        ("scalars", ADDRESS),
        ("skip", ADDRESS),
        ("sums", ADDRESS),
        ("total", ADDRESS),
        *_BLOCKS,
    ],
    align=True,
)
"""Argument of the kernels of ``update.cu``."""

MEASURED_ELEMENTS = 16 * BLOCK
"""Maximum number of elements that one block measures: 16 blocks of the sums on the host."""

MEASURES = np.dtype(
    [
        ("weights", ADDRESS),
        ("gradients", ADDRESS),
        ("states", ADDRESS, (MAX_STATES,)),
        ("master", ADDRESS),
        ("start", np.uint64, (PIECES + 1,)),
        ("scalars", ADDRESS),
        ("skip", ADDRESS),
        ("total", ADDRESS),
        ("partial", ADDRESS),
        *_BLOCKS,
    ],
    align=True,
)
"""Argument of the kernels of ``norms.cu``."""

FOLDS = np.dtype(
    [
        ("partial", ADDRESS),
        ("sums", ADDRESS),
        ("skip", ADDRESS),
        ("size", np.uint64, (PIECES,)),
        *_BLOCKS,
        ("norms", np.uint32),
    ],
    align=True,
)
"""Argument of ``fold``."""

SUMS = np.dtype(
    [("source", ADDRESS, (PIECES,)), ("nbytes", np.uint64, (PIECES,)), ("out", ADDRESS), *_BLOCKS],
    align=True,
)
"""Argument of ``checksum``."""

SEARCH = np.dtype([("words", ADDRESS), ("flag", ADDRESS), ("size", np.uint64)], align=True)
"""Argument of ``nonfinite``."""

ROUNDED_ELEMENTS = 8192
"""Maximum number of elements that one block rounds to 16 bits."""

ROUNDINGS = np.dtype(
    [
        ("residual", ADDRESS, (PIECES,)),
        ("start", np.uint64, (PIECES,)),
        ("size", np.uint64, (PIECES,)),
        ("gradients", ADDRESS),
        ("words", ADDRESS),
        ("skip", ADDRESS),
        *_BLOCKS,
    ],
    align=True,
)
"""Argument of ``narrow``."""

WIDENING = np.dtype([("words", ADDRESS), ("out", ADDRESS), ("size", np.uint64)], align=True)
"""Argument of ``widen``."""

ENCODED_ELEMENTS = 8192
"""Maximum number of elements that one block encodes: whole words of every codec's payload."""

FOUND = np.dtype([("squares", np.float64), ("beyond", np.uint64)])
"""Results of a block of ``encode``: a sum of squares, and the residuals beyond the bound."""

ENCODINGS = np.dtype(
    [
        ("residual", ADDRESS, (PIECES,)),
        ("start", np.uint64, (PIECES,)),
        ("size", np.uint64, (PIECES,)),
        ("gradients", ADDRESS),
        ("payload", ADDRESS),
        ("found", ADDRESS),
        ("skip", ADDRESS),
        ("threshold", np.float32),
        ("bound", np.float32),
        *_BLOCKS,
    ],
    align=True,
)
"""Argument of ``encode``."""

_PAYLOADS = np.dtype(
    [
        ("part", ADDRESS, (PARTS,)),
        ("count", np.uint32),
        ("continues", np.uint32),
        ("ends", np.uint32),
    ],
    align=True,
)
_SCALE = np.dtype([("offset", np.float32), ("factor", np.float32), ("divisor", np.float32)])

DECODED = np.dtype(
    [
        ("payloads", _PAYLOADS),
        ("out", ADDRESS),
        ("size", np.uint64),
        ("first", np.uint64),
        ("scale", _SCALE),
    ],
    align=True,
)
"""Argument of ``decode``."""

PACKED = np.dtype([("payloads", _PAYLOADS), ("packed", ADDRESS), ("size", np.uint64)], align=True)
"""Argument of ``pack``."""

UNPACKED = np.dtype(
    [("packed", ADDRESS), ("out", ADDRESS), ("size", np.uint64), ("scale", _SCALE)], align=True
)
"""Argument of ``unpack``."""

TAKEN_ELEMENTS = 8192
"""Maximum number of elements of which one block takes the largest."""

TAKEN_PIECES = 64
"""Maximum number of keys of such a launch."""

DIGITS = 2048
"""Length of the histogram of a key: a count for each digit of a magnitude."""

TAKES = np.dtype(
    [
        ("residual", ADDRESS, (TAKEN_PIECES,)),
        ("start", np.uint64, (TAKEN_PIECES,)),
        ("size", np.uint64, (TAKEN_PIECES,)),
        ("payload", np.uint64, (TAKEN_PIECES,)),
        ("wanted", np.uint64, (TAKEN_PIECES,)),
        ("gradients", ADDRESS),
        ("bytes", ADDRESS),
        ("histograms", ADDRESS),
        ("least", ADDRESS),
        ("counts", ADDRESS),
        ("skip", ADDRESS),
        ("shift", np.uint32),
        ("first", np.uint32, (TAKEN_PIECES + 1,)),
        ("count", np.uint32),
    ],
    align=True,
)
"""Argument of the kernels that take the largest gradients."""

ADDED_ELEMENTS = 1024
"""Maximum number of elements that one block adds to a sum."""

ADDS = np.dtype(
    [
        ("payload", np.uint64, (PIECES,)),
        ("kept", np.uint64, (PIECES,)),
        ("shift", np.int64, (PIECES,)),
        ("bytes", ADDRESS),
        ("out", ADDRESS),
        ("size", np.uint64),
        *_BLOCKS,
    ],
    align=True,
)
"""Argument of ``top_add``."""

FACTOR_PIECES = 64
"""Maximum number of matrices of a launch of the kernels that make products of narrow ones."""

_OF_MATRICES = (("first", np.uint32, (FACTOR_PIECES + 1,)), ("count", np.uint32))

DIRECTION_ELEMENTS = 2048
"""Maximum number of elements of each row that one block makes orthonormal."""

DIRECTIONS = np.dtype(
    [
        ("source", ADDRESS, (FACTOR_PIECES,)),
        ("spare", ADDRESS, (FACTOR_PIECES,)),
        ("out", ADDRESS, (FACTOR_PIECES,)),
        ("length", np.uint64, (FACTOR_PIECES,)),
        ("work", np.uint64, (FACTOR_PIECES,)),
        ("partial", np.uint64, (FACTOR_PIECES,)),
        ("scratch", ADDRESS),
        ("skip", ADDRESS),
        ("step", np.uint32),
        ("rank", np.uint32, (FACTOR_PIECES,)),
        *_OF_MATRICES,
    ],
    align=True,
)
"""Argument of ``orthonormalise``."""

TILE_ROWS, TILE_COLUMNS = 64, 512
"""Maximum rows and columns of the part of a matrix that one block multiplies."""

TILES = np.dtype(
    [
        ("matrix", ADDRESS, (FACTOR_PIECES,)),
        ("residual", ADDRESS, (FACTOR_PIECES,)),
        ("narrow", ADDRESS, (FACTOR_PIECES,)),
        ("rows", np.uint64, (FACTOR_PIECES,)),
        ("columns", np.uint64, (FACTOR_PIECES,)),
        ("partial", np.uint64, (FACTOR_PIECES,)),
        ("scratch", ADDRESS),
        ("skip", ADDRESS),
        ("rank", np.uint32, (FACTOR_PIECES,)),
        *_OF_MATRICES,
    ],
    align=True,
)
"""Argument of ``project`` and ``project_back``."""

ADDED_TOGETHER = 32
"""Number of elements of which one block adds the products of tiles."""

TILE_SUMS = np.dtype(
    [
        ("out", ADDRESS, (FACTOR_PIECES,)),
        ("size", np.uint64, (FACTOR_PIECES,)),
        ("tiles", np.uint64, (FACTOR_PIECES,)),
        ("partial", np.uint64, (FACTOR_PIECES,)),
        ("scratch", ADDRESS),
        ("skip", ADDRESS),
        *_OF_MATRICES,
    ],
    align=True,
)
"""Argument of ``add_tiles``."""

PRODUCTS = np.dtype(
    [
        ("matrix", ADDRESS, (FACTOR_PIECES,)),
        ("residual", ADDRESS, (FACTOR_PIECES,)),
        ("left", ADDRESS, (FACTOR_PIECES,)),
        ("right", ADDRESS, (FACTOR_PIECES,)),
        ("rows", np.uint64, (FACTOR_PIECES,)),
        ("columns", np.uint64, (FACTOR_PIECES,)),
        ("skip", ADDRESS),
        ("senders", np.float32),
        ("average", np.uint32),
        ("rank", np.uint32, (FACTOR_PIECES,)),
        *_OF_MATRICES,
    ],
    align=True,
)
"""Argument of ``multiply``."""


def new(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an argument of zeros: a 0-dimensional array, which CuPy passes by value."""
    return np.zeros((), dtype)


class PlannedLaunch(NamedTuple):
    """One launch of a kernel that works on pieces of memory.

    Attributes
    ----------
    blocks : int
    argument : ndarray
    pieces : slice
        The pieces of this launch, among all pieces.
    """

    blocks: int
    argument: NDArray[Any]
    pieces: slice


def plan_launches(
    layout: np.dtype[Any], sizes: NDArray[np.int64], per_block: int, most: int = PIECES
) -> list[PlannedLaunch]:
    """Plan the launches of a kernel on any number of pieces: one launch for each `most` pieces.

    Parameters
    ----------
    layout : dtype
        Layout of the argument, of which ``first`` and ``count`` are filled in.
    sizes : ndarray of int64, shape (n,)
        Sizes of the pieces; a piece of size 0 gets no block.
    per_block : int
        Maximum work of one block, in the unit of `sizes`.
    most : int
        Maximum number of pieces of a launch.
    """
    launches = []
    for pieces in ranges(len(sizes), most):
        first = first_blocks(sizes[pieces], per_block)
        argument = new(layout)
        argument["first"][: len(first)] = first
        argument["count"] = len(first) - 1
        launches.append(PlannedLaunch(int(first[-1]), argument, pieces))
    return launches


def first_blocks(sizes: NDArray[np.int64], per_block: int) -> NDArray[np.int64]:
    """Return the index of each piece's first block, and at the end the number of all blocks.

    Parameters as of `plan_launches`; the result has shape (n + 1,).

    Examples
    --------
    >>> first_blocks(np.array([10, 0, 25]), 10)
    array([0, 1, 1, 4])
    """
    first = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(-(-sizes // per_block), out=first[1:])
    return first


def plan_updates(segments: Segments) -> list[PlannedLaunch]:
    """Plan the launches that update segments, without the addresses of an update.

    Examples
    --------
    >>> launches = plan_updates(Segments(np.array([0, 10000, 10064])))
    >>> [launch.blocks for launch in launches]
    [3]
    """
    bounds = segments.bounds
    launches = plan_launches(UPDATES, np.diff(bounds), UPDATED_ELEMENTS)
    for _, argument, pieces in launches:
        argument["start"][: argument["count"] + 1] = bounds[pieces.start : pieces.stop + 1]
    return launches
