"""Kernels in C, and the cases that they are used for.

An installation without a compiler has none, and ``NCCLKV_COMPILED=0`` turns them off.  NumPy then
does all that they do, with the same bits; it does in any case what they do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv import env

try:
    from ncclkv.kernels.host._compiled import (
        COMPLETE,
        MOST_RANKS,
        checksum,
        copy,
        short_sum,
        total,
        update,
    )

    BUILT = True
except ImportError:
    BUILT = False
    COMPLETE, MOST_RANKS = 2, 0

__all__ = [
    "BUILT",
    "COMPLETE",
    "MOST_RANKS",
    "REAL",
    "STREAM_BYTES",
    "STREAM_PART_BYTES",
    "active",
    "checksum",
    "copy",
    "kinds",
    "short_sum",
    "sums",
    "total",
    "update",
]

STREAM_BYTES = 4 * 1024 * 1024
"""Arrays of at least this size are written with non-temporal stores.

Measured on 4 ranks that copy in, sum, copy out and read: with half of it that costs a fifth, with 4
to 8 MiB next to nothing is won or lost, from 16 MiB on a tenth is won.  The least that does not
lose.
"""

STREAM_PART_BYTES = 4 * 1024
"""Arrays shorter than this are copied as others are, however many there are of them."""

active = BUILT and env.compiled()

REAL = (np.dtype(np.float32), np.dtype(np.float64))
"""Dtypes of the arithmetic in C."""


def kinds() -> str:
    """Return the languages of the kernels, for messages."""
    return "C and NumPy" if active else "NumPy"


def sums(dtype: np.dtype[Any], op: str) -> bool:
    """Return whether C reduces arrays of `dtype` by `op`."""
    return active and dtype in REAL and op in ("sum", "avg")
