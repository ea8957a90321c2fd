"""A closed and deleted store releases its memory at once."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Work
from tests.harness.context import context_of


def used(name: str) -> list[bool]:
    """Use, close and delete a store; return its objects that are still alive."""
    kv = ncclkv.create(name)
    kv.init("w", np.zeros(10_000, np.float32))
    kv.set_optimizer(ncclkv.optimizer.SGD(momentum=0.5))
    kv.pushpull("w", np.ones(10_000, np.float32))
    state = context_of(kv).engine.layout["w"].state
    parts = [kv, context_of(kv).engine, state, state.gradients, state.weights]
    references = [weakref.ref(part) for part in parts]
    kv.close()
    del kv, state, parts
    return [reference() is not None for reference in references]


@pytest.mark.usefixtures("uncollected")
def test_a_store_of_one_rank_releases_its_memory() -> None:
    assert not any(used("local"))


@pytest.mark.usefixtures("uncollected")
def test_stores_that_share_memory_release_it() -> None:
    for rank, left in enumerate(ncclkv.testing.run_ranks(3, used, "threads")):
        assert not any(left), f"rank {rank}"


def reduced(comm: Communicator) -> tuple[Work, weakref.ref[np.ndarray]]:
    """Return a complete reduction, and the array that was reduced."""
    array = np.ones(10_000, np.float32)
    work = comm.allreduce(array, array)
    work.wait()
    assert str(work) == "a reduction of 40000 bytes to all ranks"
    assert array[-1] == 2
    return work, weakref.ref(array)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_a_complete_work_keeps_no_arrays(
    ranks_per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", str(ranks_per_node))

    def body() -> bool:
        with ncclkv.create("threads") as kv:
            kept = [reduced(context_of(kv).comm) for _ in range(20)]
            return any(reference() is not None for _, reference in kept)

    assert ncclkv.testing.run_ranks(2, body) == [False, False]
