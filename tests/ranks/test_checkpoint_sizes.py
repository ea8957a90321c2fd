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
from tests.harness.context import context_of

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


SIZES = {"short": 39, "one": 1, "row": 5000}
LONG = {**SIZES, "long": 40_000}
OPTIONS = {"type": "2bit", "threshold": 0.5}


def compressed(comm: Any, update_on: str) -> Any:
    """Return a store without keys, which compresses gradients."""
    kv = ncclkv.create("dist_sync", comm=comm, update_on=update_on, bucket_bytes=4096)
    kv.set_gradient_compression(OPTIONS)
    return kv


def encode(kv: Any, number: int) -> None:
    """Push multiples of 1/64, so that sums of residuals are exact in any order."""
    rng = np.random.default_rng([number, kv.rank])
    keys = list(kv.keys())
    sizes = [kv.spec(key).size for key in keys]
    kv.push(keys, [rng.integers(-99, 99, size).astype(np.float32) / 64 for size in sizes])


def values(kv: Any) -> list[bytes]:
    return [kv.pull(key).tobytes() for key in list(kv.keys())]


def residuals(kv: Any) -> list[bytes]:
    """Return the residuals of this rank, one for each key."""
    kept = context_of(kv).engine.reductions.residuals
    return [b"".join(map(bytes, kept.all_of(key))) for key in list(kv.keys())]


def owed(comm: Any, kv: Any) -> list[bytes]:
    """Return the float32 sum of all ranks' residuals, in their order, for each key."""
    totals = []
    for of_key in zip(*comm.allgather(residuals(kv)), strict=True):
        total, *rest = (np.frombuffer(each, np.float32) for each in of_key)
        for each in rest:
            total = total + each
        totals.append(total.tobytes())
    return totals


@pytest.mark.skipif(WORLD.size != 4, reason="for 4 ranks, of which 2 and 3 go on")
@pytest.mark.parametrize("sizes", [SIZES, LONG], ids=["short", "long"])
@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
def test_residuals_that_ranks_owe_stay_at_any_size(update_on: str, sizes: dict[str, int]) -> None:
    with tempfile.TemporaryDirectory() as own:
        directory = Path(WORLD.bcast(own))
        with compressed(WORLD, update_on) as kv:
            kv.init(list(sizes), [np.zeros(size, np.float32) for size in sizes.values()])
            kv.set_optimizer(SGD(learning_rate=0.25, momentum=0.5))
            for number in range(3):
                encode(kv, number)
            kv.save(directory, step=3)
            saved, total, at_save = residuals(kv), owed(WORLD, kv), values(kv)
            encode(kv, 3)
            uninterrupted = values(kv), residuals(kv)
        for size in (4, 2, 3, 1):
            comm = WORLD.Split(WORLD.rank // size)
            for other in ("every_rank", "root", "sharded"):
                with compressed(comm, other) as kv:
                    assert kv.load(directory).step == 3
                    assert (values(kv), owed(comm, kv)) == (at_save, total)
                    if size == 4:
                        assert residuals(kv) == saved
                        encode(kv, 3)
                        assert (values(kv), residuals(kv)) == uninterrupted
            comm.Free()
            WORLD.Barrier()
