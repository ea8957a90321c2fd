"""Sums in rank order over several nodes, for all distributions of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.testing import run_ranks
from tests.conformance.capabilities import BuffersOfSeveralNodes, require_rank_order, use_buffers
from tests.conformance.communicator_all import CASES, IN_ORDER
from tests.harness.slow import stretched

Split = Callable[[Sequence[int], int], list[int]]


def in_pairs(ranks: Sequence[int], rank: int) -> list[int]:
    """Put two consecutive ranks on each node; the last may be alone."""
    return [other for other in ranks if other // 2 == rank // 2]


def in_turn(ranks: Sequence[int], rank: int) -> list[int]:
    """Put every other rank on the same node, so that no neighbours are consecutive."""
    return [other for other in ranks if other % 2 == rank % 2]


def over_nodes(
    monkeypatch: pytest.MonkeyPatch, split: Split, size: int, body: Callable[[Communicator], None]
) -> None:
    """Run a body on threads that act as ranks of several nodes."""
    monkeypatch.setattr(env, "split_node", split)

    def rank() -> None:
        comm = threads.world(20.0)
        comm.reproducible = True
        with use_buffers(BuffersOfSeveralNodes()), require_rank_order():
            body(comm)
        comm.close()

    run_ranks(size, rank, timeout=stretched(20.0))


@pytest.mark.parametrize(("split", "size"), [(in_pairs, 3), (in_turn, 4)])
@pytest.mark.parametrize("name", IN_ORDER)
def test_case(monkeypatch: pytest.MonkeyPatch, name: str, split: Split, size: int) -> None:
    over_nodes(monkeypatch, split, size, CASES[name])


@pytest.mark.parametrize("way", ["halves", "messages"])
@pytest.mark.parametrize("name", ["every_op_of_every_dtype", "every_length_to_every_root"])
def test_sums_with_other_sharing_methods(
    monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", way)
    over_nodes(monkeypatch, in_pairs, 4, CASES[name])


@pytest.mark.parametrize("count", [4, 5_000, 1_500_000])
def test_shared_memory_gets_the_same_sums(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Check shared results; short arrays otherwise go from rank to rank."""

    def body(comm: Communicator) -> None:
        receive = comm.node_shared(4 * count)
        assert receive is not None
        sums, seen = receive.view(np.float32), np.zeros(count, np.uint8)
        send = np.full(count, (1e8, 1.0, -1e8, 1.0)[comm.rank], np.float32)

        def apply(lo: int, hi: int) -> None:
            seen[lo:hi] += 1
            assert (sums[lo:hi] == 1.0).all()

        comm.reduction(send, sums, sharded_update=True).launch(apply).wait()
        comm.barrier().wait()
        # ((1e8 + 1) - 1e8) + 1 is 1; a pairwise sum would be 0.
        assert (sums == 1.0).all()
        others = comm.control.allgather(seen)
        assert (np.sum(others, axis=0) == 2).all()  # one array a node

    over_nodes(monkeypatch, in_pairs, 4, body)


def test_sums_of_16_bits_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check sums without an order: nodes exchange their own sums in float32."""

    def body(comm: Communicator) -> None:
        comm.reproducible = False
        sums = np.full(100_000, (2048, 1, 1, 1)[comm.rank], np.float16)
        comm.allreduce(sums, sums).wait()
        # 2051 is rounded to 2052. Rounded on each node, 2049 is 2048, and the sum is 2050.
        assert (sums == 2052).all()

    over_nodes(monkeypatch, in_pairs, 4, body)


def test_splits_and_duplicates_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(comm: Communicator) -> None:
        whole, some = comm.duplicate(), comm.split(0)
        assert some is not None
        for made in (whole, some):
            assert made.reproducible
            made.close()

    over_nodes(monkeypatch, in_pairs, 3, body)
