"""Placements of updates: destinations of sums, the ranks that update, and publication."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.comm.destinations import EVERYONE, Owners, Root, To
from ncclkv.comm.host import threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.comm.types import Buffer
from ncclkv.engine.placement import placement
from ncclkv.engine.reduction import Span
from ncclkv.errors import UsageError
from ncclkv.table.bucket import make_buckets
from ncclkv.table.registry import KeySpec
from ncclkv.testing import run_ranks

RANKS = 3


def span(weights: Buffer, to: To = EVERYONE) -> Span:
    """Return a range of a bucket with these weights."""
    return Span(0, weights.size, weights, weights, "key 'w'", to)


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


@pytest.mark.parametrize("count", [0, 1, 16, 64, 65, 1000, 4096])
def test_owners_have_equal_slices_and_gather_them(count: int) -> None:
    def body() -> None:
        comm = threads.world()
        made = placement("sharded", 0, comm)
        assert (made.owner, made.leader) == ("owners", 0)
        assert made.updates
        assert made.divides
        assert not made.replicated
        assert made.shares_weights
        to = made.to(count)
        assert isinstance(to, Owners)
        assert (to.bounds[0], to.bounds[-1]) == (0, count)
        lengths = np.diff(to.bounds)
        assert (lengths >= 0).all()
        assert max(lengths) - min(lengths) <= 16
        assert all(bound % 16 == 0 for bound in to.bounds[:-1] if bound < count)
        weights = np.full(count, float(comm.rank))
        made.publish(span(weights, to)).wait()
        assert weights.tolist() == [to.owner(element) for element in range(count)]
        comm.close()

    run_ranks(RANKS, body, timeout=20)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_owners_of_a_bucket_have_parts_of_equal_length(size: int) -> None:
    def body() -> None:
        comm = threads.world()
        made = placement("sharded", 0, comm)
        specs = [KeySpec(n, n, (n,), np.dtype(np.float32)) for n in (0, 1, 63, 64, 65, 1000)]
        for bucket in make_buckets(specs, 300, multiple=made.multiple):
            to = made.to(bucket.count)
            assert isinstance(to, Owners)
            assert set(np.diff(to.bounds)) == {bucket.count // size}
        comm.close()

    run_ranks(size, body, timeout=20)


def test_owners_of_whole_keys_have_their_bounds_at_keys() -> None:
    specs = [KeySpec(key, key, (size,), np.dtype(np.float32)) for key, size in enumerate((90, 30))]
    buckets = make_buckets(specs, 1 << 20)

    def body() -> None:
        comm = threads.world()
        (to,) = placement("sharded", 0, comm).by_key(buckets, [0] * comm.size)
        assert isinstance(to, Owners)
        lows = buckets[0].lows
        assert {to.owner(low) for low in lows} == {0, 1}
        assert set(to.bounds) <= {*lows, buckets[0].count}
        comm.close()

    run_ranks(2, body, timeout=20)


@pytest.mark.parametrize("name", ["everywhere", None, 3, ["root"]])
def test_an_unknown_placement_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is unknown; use every_rank, root or sharded"):
        placement(name, 0, SoloCommunicator(1.0))


def test_a_root_that_is_no_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="root"):
        placement("root", 1, SoloCommunicator(1.0))
