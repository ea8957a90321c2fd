"""Destinations of sums: owners of elements, and of ranges of a sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ncclkv.comm.types import Owners


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
