"""Metrics of several ranks: who was last, bytes, and the bandwidth of the bus."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv

SIZE = 320_000
STEPS = 5

pytestmark = [
    pytest.mark.limit(60),
    pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a rank alone waits for nobody"),
]


def test_all_ranks_of_a_node_count_the_rank_that_sleeps(comm_world: MPI.Intracomm) -> None:
    slow = comm_world.size - 1
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(SIZE, np.float32))
        kv.metrics()
        for _ in range(STEPS):
            comm_world.barrier()
            time.sleep(0.05 * (kv.rank == slow))
            kv.push("w", np.ones(SIZE, np.float32))
            kv.wait()
        metrics = kv.metrics()
    bucket = metrics["buckets"]["0"]
    assert bucket["launches"] == bucket["completed"] == STEPS
    assert bucket["nbytes"] == STEPS * 4 * SIZE
    factor = 2 * (comm_world.size - 1) / comm_world.size
    bandwidth = factor * bucket["nbytes"] / bucket["seconds"]
    assert bucket["busbw_bytes_per_second"] == pytest.approx(bandwidth)
    assert metrics["pushed_bytes"] == STEPS * 4 * SIZE
    if comm_world.rank != slow:
        assert metrics["waited_seconds"] > 0.03 * STEPS
    if os.environ.get("NCCLKV_RANKS_PER_NODE") or os.environ.get("NCCLKV_NODE_MEMORY"):
        return  # ranks of other nodes, and those that exchange messages, publish no times
    last = metrics["last"]
    assert last["sums"] == STEPS
    assert last["ranks"][str(slow)]["count"] >= STEPS - 1
    assert last["ranks"][str(slow)]["median_seconds"] > 0.02
    assert metrics["summary"][0].startswith(f"rank {slow} was last to ")
    if comm_world.rank != slow:
        awaited = metrics["awaited"]
        assert max(awaited, key=lambda rank: awaited[rank]["seconds"]) == str(slow)
