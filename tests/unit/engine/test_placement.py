"""Placements of updates: destinations of sums, the ranks that update, and publication."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.comm.host import threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.types import EVERYONE, Buffer, Root
from ncclkv.engine.placement import placement
from ncclkv.engine.reduction import Span
from ncclkv.errors import NotSupported, UsageError
from ncclkv.testing import run_ranks

RANKS = 3


def span(weights: Buffer) -> Span:
    """Return a range of a bucket with these weights."""
    return Span(0, weights.size, weights, weights, "key 'w'")


def test_every_rank_receives_and_updates() -> None:
    made = placement("every_rank", 0, SoloCommunicator(1.0))
    assert made.to(10) == EVERYONE
    assert (made.owner, made.leader) == ("every rank", 0)
    assert made.updates
    assert made.replicated
    assert made.shares_weights
    assert made.publish(span(np.zeros(10))).done()


@pytest.mark.parametrize("root", range(RANKS))
def test_the_root_alone_receives_updates_and_publishes(root: int) -> None:
    def body() -> None:
        comm = threads.world()
        made = placement("root", root, comm)
        assert made.to(10) == Root(root)
        assert (made.owner, made.leader) == (f"rank {root}", root)
        assert made.updates == (comm.rank == root)
        assert not made.replicated
        assert not made.shares_weights
        weights = np.full(10, float(comm.rank))
        made.publish(span(weights)).wait()
        assert (weights == root).all()
        comm.close()

    run_ranks(RANKS, body, timeout=20)


@pytest.mark.parametrize("name", ["sharded"])
def test_a_placement_of_a_later_version_is_refused(name: str) -> None:
    with pytest.raises(NotSupported, match="update_on='sharded' is not in this version"):
        placement(name, 0, SoloCommunicator(1.0))


@pytest.mark.parametrize("name", ["everywhere", None, 3, ["root"]])
def test_an_unknown_placement_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is unknown; use every_rank or root"):
        placement(name, 0, SoloCommunicator(1.0))


def test_a_root_that_is_no_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="root"):
        placement("root", 1, SoloCommunicator(1.0))
