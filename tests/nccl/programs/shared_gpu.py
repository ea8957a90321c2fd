"""Stores of different ranks, one after another, on a shared GPU; ``python shared_gpu.py HOW``.

HOW is ``alone``: first a store of each rank alone.  ``halves``: first a store of each half of the
ranks.  NCCL reads some of its variables once in a process, for the first store; the store of all
ranks has to work with these.
"""

from __future__ import annotations

import sys

import cupy
from mpi4py import MPI

import ncclkv


def total(kv: ncclkv.KVStore) -> float:
    """Return the sum of 1 over the ranks of a store, which is closed."""
    with kv:
        kv.init("w", cupy.zeros(5, cupy.float32))
        kv.push("w", cupy.ones(5, cupy.float32))
        return float(kv.pull("w")[0])


def main(how: str) -> None:
    world = MPI.COMM_WORLD
    if how == "alone":
        first = total(ncclkv.create("device", timeout=30))
    else:
        half = world.Split(world.rank * 2 // world.size)
        first = total(ncclkv.create("nccl", comm=half, timeout=30))
    found = total(ncclkv.create("nccl", timeout=30))
    print(f"rank {world.rank} | {first:g} | {found:g}", flush=True)


main(sys.argv[1])
