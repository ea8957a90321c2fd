"""One rank on a GPU with a fault; ``python errors.py FAULT``.

The program prints the error of a store's wait, and the seconds until it was raised.
"""

from __future__ import annotations

import sys
import time

import cupy
import numpy as np

import ncclkv

TIMEOUT = 3.0
"""Seconds of the store's deadline."""

BAD_WRITE = """
extern "C" __global__ void bad_write(float *array) { array[1ull << 45] = 1.0f; }
"""
SPIN = """
extern "C" __global__ void spin(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


def go_wrong(fault: str) -> None:
    """Put a fault of a user's kernel on the current stream."""
    if fault == "illegal address":
        cupy.RawKernel(BAD_WRITE, "bad_write")((1,), (1,), (cupy.zeros(1, np.float32),))
    else:
        # Three times the deadline at 2 GHz.
        cupy.RawKernel(SPIN, "spin")((1,), (1,), (np.int64(18e9),))


def run_out(kv: ncclkv.KVStore) -> None:
    """Allocate twice the memory of the GPU, and continue after the error."""
    count = 2 * cupy.cuda.Device().mem_info[1] // 4
    begin = time.monotonic()
    try:
        # One number of host memory for any shape.
        kv.init("huge", np.broadcast_to(np.float32(0), (count,)))
    except ncclkv.KVStoreError as error:
        print(f"init: {type(error).__name__}: {error}")
    print(f"init returned after {time.monotonic() - begin:.2f} s", flush=True)
    kv.push("w", cupy.ones(1000, np.float32))
    print("the store goes on:", float(kv.pull("w").sum()), flush=True)


def main(fault: str) -> None:
    kv = ncclkv.create("nccl", timeout=TIMEOUT)
    kv.init("w", np.zeros(1000, np.float32))
    kv.push("w", cupy.ones(1000, np.float32))
    kv.wait()
    print("as it should be", flush=True)
    value = cupy.ones(1000, np.float32)  # allocated before the fault
    if fault == "out of memory":
        run_out(kv)
        return
    go_wrong(fault)
    begin = time.monotonic()
    for call in ("first", "second"):
        try:
            kv.push("w", value)
            kv.wait()
        except ncclkv.KVStoreError as error:
            print(f"{call}: {type(error).__name__}: {error}")
        print(f"{call} returned after {time.monotonic() - begin:.2f} s", flush=True)


main(sys.argv[1])
