"""Resources of a process that broken stores keep after their close."""

from __future__ import annotations

import os

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.errors import OrderMismatch

pytestmark = pytest.mark.limit(60)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def broken() -> ncclkv.KVStore:
    """Break a store by pushing different keys, and close it."""
    kv = ncclkv.create("dist_sync", timeout=20)
    kv.init(["a", "b"], [np.zeros(10), np.zeros(10)])
    with pytest.raises(OrderMismatch):
        kv.pushpull("a" if kv.rank == 1 else "b", np.ones(10))
    kv.close()
    return kv


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank agrees with itself")
def test_a_broken_store_that_is_closed_keeps_no_descriptor() -> None:
    stores = [broken() for _ in range(2)]  # MPI opens descriptors of its own for the first
    before = descriptors()
    stores += [broken() for _ in range(4)]
    # Each store once kept 8 or more; MPI may have opened one or two meanwhile.
    assert descriptors() < before + 4, f"rank {MPI.COMM_WORLD.rank}"
