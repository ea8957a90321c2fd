"""Kernels in CUDA, on CuPy arrays, with the results of ``kernels/host``.

Sums and updates follow NumPy's rules operation by operation.  16-bit floats are computed in float32
and rounded once.  Integers wrap.  A sum of bools is their logical or.  NaN wins a maximum and a
minimum.  Subnormal numbers are kept.  Products and sums are not fused.

Kernels run in CuPy's current stream, and calls return before they have run.  Only `unpack` into
host memory waits.  CuPy is imported at the first use.
"""
