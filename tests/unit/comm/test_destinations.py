"""Destinations of sums: owners of elements, of ranges of a sum, and among nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import ncclkv
from ncclkv.comm.destinations import EVERYONE, Owners, Root, To, bounds_of
from ncclkv.testing import run_ranks


@given(st.lists(st.integers(0, 20), max_size=4), st.integers(0, 20), st.integers(0, 20))
def test_owners_of_a_range_own_its_elements(cuts: list[int], one: int, other: int) -> None:
    whole = Owners([0, *sorted(cuts), 20])
    lo, hi = sorted((one, other))
    inside = whole.within(lo, hi)
    assert (inside.bounds[0], inside.bounds[-1]) == (0, hi - lo)
    for element in range(lo, hi):
        owner = whole.owner(element)
        assert whole.bounds[owner] <= element < whole.bounds[owner + 1]
        assert inside.owner(element - lo) == owner


def test_an_element_past_the_end_has_a_rank() -> None:
    assert Owners([0, 4, 4]).owner(4) == 1


def test_destinations_among_nodes() -> None:
    nodes = [[0, 1], [2, 3], [4, 5]]
    assert EVERYONE.among(nodes, 1) == EVERYONE
    assert Root(3).among(nodes, 0) == Root(1)
    assert Owners([0, 1, 3, 6, 10, 15, 21]).among(nodes, 1) == Owners([0, 2, 6, 12])


def test_each_answers_for_itself() -> None:
    owners = Owners([0, 4, 4, 10])
    assert [to.collective for to in (EVERYONE, Root(1), owners)] == [
        "allreduce", "reduce", "reduce_scatter",
    ]  # fmt: skip
    assert [to.part(2, 10) for to in (EVERYONE, Root(2), owners)] == [(0, 10), (0, 10), (4, 10)]
    assert [to.owner(5) for to in (EVERYONE, Root(1), owners)] == [None, 1, 2]
    assert [to.root for to in (EVERYONE, Root(1), owners)] == [None, 1, None]
    assert [to.receives(0) for to in (EVERYONE, Root(1), owners)] == [True, False, True]
    assert [to.divided for to in (EVERYONE, Root(1), owners)] == [False, False, True]
    assert bounds_of(owners, 10, 3) == [0, 4, 4, 10]
    assert owners.placed(lambda element: element // 2) == Owners([0, 2, 2, 5])


@dataclass(frozen=True)
class EvenRanks(To):
    """A destination that the package does not have: the ranks of even number receive."""

    collective = "allreduce"

    def receives(self, rank: int) -> bool:
        return rank % 2 == 0

    def among(self, groups: Sequence[Sequence[int]], index: int) -> To:
        return EVERYONE

    def check(self, count: int, size: int) -> None: ...


def test_another_destination_takes_one_class() -> None:
    def work() -> list[float]:
        comm = ncclkv.comm.world(20.0)
        total = np.zeros(50_000)
        comm.reduction(np.full(50_000, comm.rank + 1.0), total, to=EvenRanks()).launch().wait()
        found = [float(total[0]), float(total[-1])] if comm.rank % 2 == 0 else []
        comm.close()
        return found

    assert run_ranks(3, work) == [[6.0, 6.0], [], [6.0, 6.0]]
