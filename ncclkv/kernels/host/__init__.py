"""Kernels for host memory: in NumPy, and in C where NumPy is slow.

Reductions and updates go through chunks (`ncclkv.kernels.host.chunks`).  The result of a NumPy call
is still in the cache when the next call reads it, and scratch memory stays small.  Kernels keep no
buffer between calls, so threads may share one object.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.arrays import as_out, as_value
from ncclkv.kernels.base import Array
from ncclkv.kernels.host import compiled
from ncclkv.kernels.host.checksum import checksums
from ncclkv.kernels.host.finite import find_nonfinite
from ncclkv.kernels.host.measure import measure
from ncclkv.kernels.host.pack import pack, pack_all, unpack, unpack_all
from ncclkv.kernels.host.reduce import combine, divide, reduce
from ncclkv.kernels.host.update import assign, update


class HostKernels:
    """`ncclkv.kernels.base.Kernels` on NumPy arrays.

    Examples
    --------
    >>> import numpy as np
    >>> total = np.zeros(3, np.float32)
    >>> HostKernels().reduce([np.ones(3, np.float32), np.full(3, 2, np.float32)], total, "sum")
    >>> total
    array([3., 3., 3.], dtype=float32)
    """

    coding = None
    value = staticmethod(as_value)
    out = staticmethod(as_out)
    pack = staticmethod(pack)
    unpack = staticmethod(unpack)
    pack_all = staticmethod(pack_all)
    unpack_all = staticmethod(unpack_all)
    combine = staticmethod(combine)
    reduce = staticmethod(reduce)
    divide = staticmethod(divide)
    find_nonfinite = staticmethod(find_nonfinite)
    assign = staticmethod(assign)
    update = staticmethod(update)
    measure = staticmethod(measure)
    checksums = staticmethod(checksums)

    def __repr__(self) -> str:
        return f"HostKernels({compiled.kinds()})"

    def not_in_c(self, dtype: np.dtype[Any], op: str) -> str:
        """Return why NumPy makes sums of `dtype` by `op`; empty if C does."""
        return compiled.reason(dtype, op)

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Return a new flat array of zeros."""
        return np.zeros(count, dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array with undefined elements."""
        return np.empty(shape, dtype)

    def measure_scratch(self, count: int, segments: int) -> Array:
        """Return an empty array: chunks are measured in the cache."""
        return np.empty(0)

    def left(self) -> None:
        """Return None: the free memory of a node is shared by its ranks."""

    def fill(self, array: Array, value: float) -> None:
        """Set every element of `array` to a scalar."""
        array.fill(value)

    def copy(self, array: Array) -> Array:
        """Return a contiguous copy that shares no memory."""
        return np.array(array, order="C", copy=True, subok=False)
