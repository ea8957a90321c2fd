"""The kernels in CUDA, on CuPy's arrays: twins of those in ``kernels/host``.

Sums and steps follow NumPy's rules operation by operation: 16-bit floats are computed in float32
and rounded once, integers wrap, a sum of bools is their logical or, NaN wins a maximum and a
minimum, subnormal numbers are kept, products and sums are not fused.

Everything happens in CuPy's current stream and returns before it has happened.  Only `unpack` into
host memory waits.  Nothing here imports CuPy before it is used.
"""

from __future__ import annotations

from ncclkv.kernels.device.copies import CopyTable
from ncclkv.kernels.device.kernels import DeviceKernels

__all__ = ["CopyTable", "DeviceKernels"]
