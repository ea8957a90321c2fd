"""Allgathers into memory that the ranks of a node share, and others whose ranks differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import pytest

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.errors import OrderMismatch, UsageError
from ncclkv.testing import run_ranks
from tests.harness.slow import stretched

NODES = {
    "one node": lambda ranks, rank: list(ranks),
    "each alone": lambda ranks, rank: [rank],
    "pairs": lambda ranks, rank: [other for other in ranks if other // 2 == rank // 2],
    "in turn": lambda ranks, rank: [other for other in ranks if other % 2 == rank % 2],
    "three and one": lambda ranks, rank: [other for other in ranks if (other < 3) == (rank < 3)],
}
"""Distributions of ranks over nodes."""


def on_nodes(
    monkeypatch: pytest.MonkeyPatch, nodes: str, size: int, body: Callable[[Communicator], None]
) -> None:
    """Run a body on threads that act as ranks of some nodes."""
    monkeypatch.setattr(env, "split_node", NODES[nodes])

    def rank() -> None:
        comm = threads.world(stretched(10.0))
        body(comm)
        comm.close()

    run_ranks(size, rank, timeout=stretched(30.0))


def part_of(memory: np.ndarray, counts: Sequence[int], rank: int) -> np.ndarray:
    """Return the part of a rank in gathered memory."""
    ends = [0, *accumulate(counts)]
    return memory[ends[rank] : ends[rank + 1]]


@pytest.mark.parametrize("counts", [[5, 0, 300, 7], [0, 0, 9, 0], [64, 64, 64, 64], [90000] * 4])
@pytest.mark.parametrize(
    ("nodes", "size"),
    [("one node", 4), ("pairs", 3), ("pairs", 4), ("in turn", 4), ("three and one", 4)],
)
def test_every_rank_has_every_part(
    monkeypatch: pytest.MonkeyPatch, nodes: str, size: int, counts: list[int]
) -> None:
    counts = counts[:size]

    def body(comm: Communicator) -> None:
        shared = comm.node_shared(8 * sum(counts))
        assert shared is not None
        memory = shared.view(np.float64)
        own = part_of(memory, counts, comm.rank)
        for step in range(1, 4):
            own[:] = 10 * step + comm.rank
            comm.allgatherv(own, memory, counts).wait()
            for rank in range(size):
                assert (part_of(memory, counts, rank) == 10 * step + rank).all()
            # No rank may write before all have read.
            comm.barrier().wait()

    on_nodes(monkeypatch, nodes, size, body)


def test_a_part_that_is_not_in_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(comm: Communicator) -> None:
        memory = comm.node_shared(4)
        assert memory is not None
        with pytest.raises(UsageError, match="send is not this rank's part of it"):
            comm.allgatherv(np.zeros(2, np.uint8), memory, [2, 2])

    on_nodes(monkeypatch, "one node", 2, body)


@pytest.mark.parametrize("nodes", ["one node", "pairs"])
def test_other_counts_are_a_mismatch_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    def body(comm: Communicator) -> None:
        memory = comm.node_shared(400)
        assert memory is not None
        counts = [100, 100, 101, 99] if comm.rank == 3 else [100, 100, 100, 100]
        with pytest.raises(OrderMismatch):
            comm.allgatherv(part_of(memory, counts, comm.rank), memory, counts).wait()
        comm.abort("the end of the test")

    on_nodes(monkeypatch, nodes, 4, body)


@pytest.mark.parametrize("nodes", ["one node", "each alone"])
@pytest.mark.parametrize("of_ranks", [([0, 5], [5, 0]), ([0, 0], [0, 5])], ids=str)
def test_other_counts_are_a_mismatch_where_parts_are_empty(
    monkeypatch: pytest.MonkeyPatch, nodes: str, of_ranks: tuple[list[int], ...]
) -> None:
    def body(comm: Communicator) -> None:
        counts = of_ranks[comm.rank]
        own, gathered = np.zeros(counts[comm.rank]), np.zeros(sum(counts))
        begin, found = time.monotonic(), ""
        try:
            comm.allgatherv(own, gathered, counts).wait()
        except OrderMismatch as error:
            found = str(error)
        assert time.monotonic() - begin < stretched(5.0)
        assert found or (nodes, comm.rank) in ended
        comm.abort("the end of the test")

    # Between nodes a message names the difference to the rank that receives another length.
    ended = [("each alone", 1)] if of_ranks[0] == [0, 0] else []
    on_nodes(monkeypatch, nodes, 2, body)
