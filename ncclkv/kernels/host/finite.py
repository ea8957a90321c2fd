"""Search for NaN and infinity."""

from __future__ import annotations

import numpy as np

from ncclkv.arrays.dtypes import dtype_name
from ncclkv.kernels.base import Array
from ncclkv.kernels.host.chunks import chunk_length, ranges

# Exponent bits of the 16-bit floats, which NumPy tests slowly: if all are set, a number is not
# finite.
_EXPONENTS = {"float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80)}


def find_nonfinite(array: Array, flag: Array) -> None:
    """Set ``flag[0]`` to 1 if a number of `array` is NaN or infinite; else do nothing.

    The search stops at the first chunk with such a number.

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


def _all_finite(chunk: Array, exponent: np.uint16 | None) -> bool:
    """Return whether all numbers of a chunk are finite; `exponent` is that of 16-bit floats."""
    if exponent is None:
        return bool(np.isfinite(chunk).all())
    return bool((chunk.view(np.uint16) & exponent).max() != exponent)
