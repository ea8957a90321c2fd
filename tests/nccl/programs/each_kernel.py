"""Launch each kernel on 256 MiB, and print its bandwidth, timed by events.

``python each_kernel.py [TIMES]`` launches so often, after one launch that does not count.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import cupy
import numpy as np

from ncclkv.compress.half import FP16
from ncclkv.compress.topk import TopK
from ncclkv.compress.twobit import TwoBit
from ncclkv.kernels.base import Segments
from ncclkv.kernels.device.kernels import DeviceKernels

NBYTES = 2**28
TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 5
ROW = (0.1, 0.9, 1e-4, 1.0, -1.0)
"""Scalars of the program ``sgd``: learning rate, momentum, weight decay, rescaling, no clipping."""


def arrays(count: int, dtype: str = "float32") -> list[cupy.ndarray]:
    """Return flat arrays of random numbers, each of `NBYTES` bytes."""
    random = cupy.random.default_rng(1)
    size = NBYTES // np.dtype(dtype).itemsize
    return [random.standard_normal(size, np.float32).astype(dtype) for _ in range(count)]


def seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of a call on the device."""
    call()
    times = []
    for _ in range(TIMES):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    return statistics.median(times)


def main() -> None:
    kernels = DeviceKernels()
    one, two, three = arrays(3)
    halves = arrays(3, "float16")
    flag = cupy.zeros(1, np.uint32)
    rows, whole = cupy.array([ROW]), Segments(np.array([0, one.size]))
    every, words = [(0, one.size)], cupy.empty(one.size, np.float16)
    rounded = kernels.coding.rounding(FP16(), one, every, [], words)
    kept = kernels.coding.rounding(FP16(True), one, every, [cupy.zeros_like(one)], words)
    payload, packed = (cupy.zeros(one.size // 4, np.uint8) for _ in range(2))
    two_bit = TwoBit(threshold=1.0)
    encode = kernels.coding.encoding(two_bit, every, one, [cupy.zeros_like(one)], payload)
    parts = [payload] * 8
    one_in_100 = TopK()
    largest = cupy.zeros(one_in_100.nbytes(one.size), np.uint8)
    take = kernels.coding.taking(one_in_100, every, one, [cupy.zeros_like(one)], largest)
    add = kernels.coding.adding(one_in_100, every, 0)
    calls: dict[str, tuple[float, Callable[[], object]]] = {
        "copy by CUDA": (2, lambda: cupy.copyto(two, one)),
        "copy": (2, lambda: kernels.pack_all([one], [two])),
        "sgd": (5, lambda: kernels.update("sgd", one, two, (three,), rows, whole)),
        "combine, float32": (3, lambda: kernels.combine([one, two], three, "sum")),
        "combine, float16": (3, lambda: kernels.combine(halves[:2], halves[2], "sum")),
        "checksum": (1, lambda: kernels.checksums([one])),
        "nonfinite": (1, lambda: kernels.find_nonfinite(one, flag)),
        "narrow": (1.5, lambda: rounded(None)),
        "narrow, residual": (3.5, lambda: kept(None)),
        "encode, 2bit": (3 + 1 / 16, lambda: encode(None)),
        "decode of 8, 2bit": (1.5, lambda: kernels.coding.decode(two_bit, parts, 0, two)),
        "pack of 1, 2bit": (
            1 / 8,
            lambda: kernels.coding.pack(two_bit, parts[:1], one.size, packed),
        ),
        "take, topk": (3 + 4, lambda: take(None)),
        "add, topk": (4 / 100, lambda: add(largest, two)),
        "widen": (1.5, lambda: kernels.coding.widen(FP16(), words, two)),
    }
    for name, (passes, call) in calls.items():
        took = seconds(call)
        print(f"{name:18} {took * 1e6:9.1f} us  {passes * NBYTES / took / 1e9:7.0f} GB/s")


main()
