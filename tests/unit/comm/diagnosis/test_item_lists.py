"""Lists of items as texts: their differences, also where a text is cut or overwritten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.diagnosis.item_lists import describe_difference, write
from tests.harness.extent import examples

ITEMS = st.lists(st.sampled_from(["int64 ()", "float32 (2, 3)", "bool (7,)"]), max_size=9)


@settings(max_examples=examples(100), deadline=None)
@given(ITEMS, ITEMS)
def test_the_first_item_that_differs_is_found(first: list[str], second: list[str]) -> None:
    found = describe_difference(write(first), write(second), (1, 4))
    longest = max(len(first), len(second))
    mine, theirs = ([*each, *["missing"] * (longest - len(each))] for each in (first, second))
    places = [place for place in range(longest) if mine[place] != theirs[place]]
    if not places:
        assert found == ""
        return
    at = places[0]
    assert found == (f"item {at} of the list is {mine[at]} on rank 1, and {theirs[at]} on rank 4")


def test_lists_that_are_too_long_are_equal_up_to_their_cut() -> None:
    many = [f"float32 ({number},)" for number in range(1000)]
    text = write(many)
    assert 1900 < len(text.encode()) <= 2004
    shown = text.count("\n")
    found = describe_difference(text, write([*many[:-1], "int8 ()"]), (0, 1))
    assert found == f"the first {shown} items of the lists are equal"
    found = describe_difference(text, write(["int8 ()", *many]), (0, 1))
    assert found == "item 0 of the list is float32 (0,) on rank 0, and int8 () on rank 1"
    assert write(["int64 ()"] * 10**5) == "100000 int64 ()"


@pytest.mark.parametrize("torn", ["999999999999 int64 ()", "int64 ()", "2 ", " 3 int64 ()"])
def test_a_line_that_is_no_item_ends_the_list(torn: str) -> None:
    assert describe_difference(f"2 int64 ()\n{torn}", "2 int64 ()\n1 bool ()", (0, 1)) == (
        "the first 2 items of the lists are equal"
    )
    assert describe_difference(torn, "2 int64 ()", (0, 1)) == ""
