"""Kernels in CUDA, on CuPy arrays, with the results of ``kernels/host``.

Sums and updates follow NumPy's rules operation by operation.  16-bit floats are computed in float32
and rounded once.  Integers wrap.  A sum of bools is their logical or.  NaN wins a maximum and a
minimum.  Subnormal numbers are kept.  Products and sums are not fused.

Kernels run in CuPy's current stream, and calls return before they have run.  Only `unpack` into
host memory waits.  CuPy is imported at the first use.

A process loads a kernel once for each device, for all its stores (`ncclkv.kernels.device.launch`).
Machine code is kept in files of this user (`ncclkv.kernels.device.cubins`).  So NVRTC compiles a
kernel, in a tenth of a second, once for all stores, ranks and jobs.  Arrays in C order are packed
in one kernel a bucket.  ``find_nonfinite`` sets a flag in the GPU's memory.  ``update`` and
``assign`` read a flag when they run, and do nothing if it is set.  So the device decides what to
skip, also in a captured step.
"""
