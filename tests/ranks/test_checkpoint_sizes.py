"""Checkpoints saved by all ranks of the job and loaded by some of them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

import ncclkv
from ncclkv.optimizer import SGD

WORLD = MPI.COMM_WORLD


def push(kv: Any, number: int) -> None:
    """Push gradients whose sums depend on the step alone, whatever the number of ranks."""
    kv.push("w", np.arange(1.0, 40) * (number if kv.rank == 0 else 0))


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_of_the_job_go_on_alike(update_on: str, parts: int) -> None:
    with tempfile.TemporaryDirectory() as own:
        directory = Path(WORLD.bcast(own))
        with ncclkv.create("dist_sync", update_on="every_rank") as kv:
            kv.init("w", np.full(39, 1.0 / 3))
            kv.set_optimizer(SGD(learning_rate=0.3, momentum=0.7))
            push(kv, 1)
            kv.save(directory, step=1)
            push(kv, 2)
            expected = kv.pull("w")
        comm = WORLD.Split(WORLD.rank % parts)
        with ncclkv.create("dist_sync", comm=comm, update_on=update_on) as kv:
            assert kv.load(directory).step == 1
            push(kv, 2)
            assert kv.pull("w").tobytes() == expected.tobytes()
        comm.Free()
        WORLD.Barrier()  # the directory lives as long as its rank
