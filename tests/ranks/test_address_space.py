"""A rank whose address space is limited (``ulimit -v``): all ranks refuse keys that do not fit."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.errors import OutOfMemory
from ncclkv.system.memory_left import address_space_left

LAST = MPI.COMM_WORLD.size - 1
HUGE = 50_000_000
"""Float32 numbers of 200 MB."""


@contextmanager
def little_address_space(nbytes: int) -> Iterator[None]:
    """Leave this process so many bytes within the block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 50, before[1]))
    left = address_space_left()
    assert left is not None
    resource.setrlimit(resource.RLIMIT_AS, ((1 << 50) - left.nbytes + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_all_ranks_refuse_what_one_cannot_map() -> None:
    value = np.broadcast_to(np.float32(0), (HUGE,))  # one number of memory
    with ncclkv.create("dist_sync") as kv:
        kv.init("small", np.zeros(3))
        space = little_address_space(30_000_000 if kv.rank == LAST else 1 << 40)
        with space, pytest.raises(OutOfMemory) as caught:
            kv.init("huge", value)
        assert f"do not fit on rank {LAST}: in its address space they need" in str(caught.value)
        assert "RLIMIT_AS (ulimit -v), a limit of" in str(caught.value)
        kv.push("small", np.ones(3))
        assert (kv.pull("small") == kv.num_workers).all()
        with little_address_space(1 << 40):
            kv.init("medium", np.zeros(5_000_000, np.float32))
