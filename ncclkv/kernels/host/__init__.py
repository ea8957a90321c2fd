"""The kernels in NumPy, for host memory.

Reductions and updates go through pieces of about `PIECE_BYTES`, so that what one NumPy call wrote
is still in the cache when the next reads it, and nothing as large as a message is allocated.
Nothing here keeps a buffer between calls, so threads may share one object.
"""

from __future__ import annotations

from ncclkv.kernels.host.pack import pack, unpack
from ncclkv.kernels.host.pieces import PIECE_BYTES
from ncclkv.kernels.host.reduce import combine, reduce
from ncclkv.kernels.host.update import sgd

__all__ = ["PIECE_BYTES", "HostKernels"]


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

    pack = staticmethod(pack)
    unpack = staticmethod(unpack)
    combine = staticmethod(combine)
    reduce = staticmethod(reduce)
    sgd = staticmethod(sgd)
