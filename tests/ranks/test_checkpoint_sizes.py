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
from ncclkv.checkpoint.read import read
from ncclkv.optimizer import SGD

WORLD = MPI.COMM_WORLD


def push(kv: Any, number: int) -> None:
    """Push gradients whose sums depend on the step alone, whatever the number of ranks."""
    kv.push("w", np.arange(1.0, 40) * (number if kv.rank == 0 else 0))


@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
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


def tensors(directory: str) -> dict[str, bytes]:
    """Return the bytes of all tensors of a checkpoint."""
    work = read(directory, lambda manifest: None)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return {name: array.tobytes() for name, array in end.value.arrays.items()}


@pytest.mark.skipif(WORLD.size != 4, reason="for 4 ranks, of which 2 and 3 go on")
def test_states_are_the_same_bits_at_any_size_and_placement() -> None:
    sizes, first = [39, 5000, 1, 40_000], None
    with tempfile.TemporaryDirectory() as own:
        directory = Path(WORLD.bcast(own))
        runs = [(4, "sharded"), (2, "every_rank"), (3, "sharded"), (1, "root"), (4, "sharded")]
        for number, (size, update_on) in enumerate(runs):
            comm = WORLD.Split(WORLD.rank // size)
            # The other ranks make the same calls in a directory of their own.
            mine = directory / f"of-{WORLD.rank // size}"
            with ncclkv.create("dist_sync", comm=comm, update_on=update_on) as kv:
                if number:
                    kv.load(directory / "of-0")
                    WORLD.Barrier()  # a save removes old checkpoints
                else:
                    kv.init([0, 1, 2, 3], [np.full(each, 1.0 / 3, np.float32) for each in sizes])
                    kv.set_optimizer(SGD(learning_rate=0.3, momentum=0.7))
                    rng = np.random.default_rng(kv.rank)
                    for keys in ([0, 1, 2, 3], [1, 2], [3]):
                        pushed = [rng.standard_normal(sizes[key]) for key in keys]
                        kv.push(keys, [each.astype(np.float32) for each in pushed])
                path = kv.save(mine, step=number)
                if WORLD.rank == 0:
                    found = tensors(path)
                    first = first or found
                    assert found == first
            comm.Free()
            WORLD.Barrier()
