"""Search for NaN and infinity."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.arrays.dtype_table import TABLE
from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.base import Array
from ncclkv.kernels.host.chunks import chunk_length, ranges

# Exponent bits of the short floats, which NumPy tests slowly, in a word of their length: if all are
# set, an element is not finite.
_EXPONENTS = {
    row.name: np.dtype(f"u{row.itemsize}").type(row.exponent)
    for row in TABLE
    if row.is_low_precision and row.exponent is not None
}


def find_nonfinite(array: Array, flag: Array) -> None:
    """Set ``flag[0]`` to 1 if an element of `array` is NaN or infinite; else do nothing.

    The search stops at the first chunk with such an element.

    Parameters
    ----------
    array : ndarray, shape (n,)
        An array of any dtype that stores hold; integers and bools are finite.
    flag : ndarray of int32, shape (1,)

    Examples
    --------
    >>> flag = np.zeros(1, np.int32)
    >>> find_nonfinite(np.array([1e308, -1e308]), flag)
    >>> int(flag[0])
    0
    >>> find_nonfinite(np.array([1.0, np.nan]), flag)
    >>> int(flag[0])
    1
    """
    if array.dtype.kind in "biu":
        return
    if array.dtype.kind == "c":
        array = array.view(array.real.dtype)
    exponent = _EXPONENTS.get(dtype_name(array.dtype))
    for chunk in ranges(array.size, chunk_length(array.dtype)):
        if not _all_finite(array[chunk], exponent):
            flag[0] = 1
            return


def _all_finite(chunk: Array, exponent: np.unsignedinteger[Any] | None) -> bool:
    """Return whether all elements of a chunk are finite; `exponent` is that of short floats."""
    if exponent is None:
        return bool(np.isfinite(chunk).all())
    return bool((chunk.view(exponent.dtype) & exponent).max() != exponent)
