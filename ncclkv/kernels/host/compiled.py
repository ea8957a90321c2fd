"""Kernels in C, and the cases in which they are used.

An installation without a compiler has no kernels in C, and ``NCCLKV_COMPILED=0`` turns them off.
NumPy then makes the same bits.

C makes sums and averages of float32 and float64, the programs of optimizers, checksums, the codes
of `ncclkv.compress`, and long copies.  NumPy makes one pass over a block for each operation, and
reads every line that it overwrites.  C keeps a tile of 1 KiB in the first-level cache
(``elements.h``), and writes long arrays with non-temporal stores.  Such stores are weakly ordered
even on x86.  So a call that uses them ends with a store fence, before the phase is published.

C makes NumPy's operations in NumPy's order, and contracts none of them, so the bits are equal.
Only the choice between two NaNs may differ.  Ranks with C and without C may work together.  An
update widens 16-bit floats to float32 in tiles of 4 KiB, and rounds each tile to the weights
(``narrow.h``).

A short sum on a node is one call, from the copy to the last phase (``short.h``).  If the other
ranks arrive too late, the next poll continues the sum where it stopped.  A call that a program
repeats is appended to the page of calls by C (``calls.h``).

``setup.py`` builds the extension with GCC or a compatible compiler, without flags for one
processor.  Loops have versions for AVX-512, AVX2 and other processors, and the loader chooses.
Without a compiler or ``Python.h`` the installation continues.  `kinds` and the output of ``make
bench`` state what is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv import env
from ncclkv.arrays.dtypes import is_low_precision
from ncclkv.kernels.base import Array

try:
    from ncclkv.kernels.host._compiled import COMPLETE as COMPLETE
    from ncclkv.kernels.host._compiled import MAX_RANKS as MAX_RANKS
    from ncclkv.kernels.host._compiled import add_largest as add_largest
    from ncclkv.kernels.host._compiled import append_call as append_call
    from ncclkv.kernels.host._compiled import cast as cast
    from ncclkv.kernels.host._compiled import checksum as checksum
    from ncclkv.kernels.host._compiled import copy as copy
    from ncclkv.kernels.host._compiled import count_levels as count_levels
    from ncclkv.kernels.host._compiled import encode as encode
    from ncclkv.kernels.host._compiled import measure as measure
    from ncclkv.kernels.host._compiled import multiply as multiply
    from ncclkv.kernels.host._compiled import narrow_with_rest as narrow_with_rest
    from ncclkv.kernels.host._compiled import orthonormalise as orthonormalise
    from ncclkv.kernels.host._compiled import pack_counts as pack_counts
    from ncclkv.kernels.host._compiled import scale_counts as scale_counts
    from ncclkv.kernels.host._compiled import set_clock as set_clock
    from ncclkv.kernels.host._compiled import short_sum as short_sum
    from ncclkv.kernels.host._compiled import take_largest as take_largest
    from ncclkv.kernels.host._compiled import total as total
    from ncclkv.kernels.host._compiled import unpack_counts as unpack_counts
    from ncclkv.kernels.host._compiled import update as update

    BUILT = True
except ImportError:
    BUILT = False
    COMPLETE, MAX_RANKS = 2, 0

    def set_clock(nanoseconds: int | None, /) -> None:
        """Do nothing: without C, Python reads the clock."""


STREAM_BYTES = 4 * 1024 * 1024
"""Arrays of at least this size are written with non-temporal stores.

Measured on 4 ranks that copy in, sum, copy out and read.  At 2 MiB such stores cost a fifth of the
time, at 4 to 8 MiB they change little, and from 16 MiB on they save a tenth.
"""

STREAM_PART_BYTES = 4 * 1024
"""Shorter arrays are copied with ordinary stores, whatever their count."""

active = BUILT and env.compiled()

_REAL = (np.dtype(np.float32), np.dtype(np.float64))


def kinds() -> str:
    """Return the languages of the kernels, for messages."""
    return "C and NumPy" if active else "NumPy"


def reason(dtype: np.dtype[Any], op: str) -> str:
    """Return why C does not reduce arrays of `dtype` by `op`; empty if it does."""
    if not BUILT:
        return (
            "the extension is not built, so NumPy makes sums, updates and copies; install ncclkv "
            "where a C compiler is found"
        )
    if not active:
        return "NCCLKV_COMPILED=0 turns C off, so NumPy makes sums, updates and copies"
    if sums(dtype, op):
        return ""
    return f"NumPy makes {op} of {dtype}; C has sum and avg of floating-point numbers alone"


def sums(dtype: np.dtype[Any], op: str) -> bool:
    """Return whether C reduces arrays of `dtype` by `op`."""
    return active and op in ("sum", "avg") and (dtype in _REAL or is_low_precision(dtype))


def words(array: Array) -> Array:
    """Return an array as C takes it: the buffer protocol has no format for bfloat16."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array
