"""What is kept of calls, to know them when they come again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from ncclkv.store.recent import Recent


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_the_very_same_arrays_are_found_again() -> None:
    recent, one, two = Recent(), f(2), f(3)
    recent.keep("push", [1, 2], [one, two], [one, two], "made")
    assert recent.find("push", [1, 2], (one, two)) == ("made", (one, two))
    for other in (
        ("pull", [1, 2], [one, two]),
        ("push", [2, 1], [one, two]),
        ("push", [1, 2], [two, one]),
        ("push", [1, 2], [one, two.copy()]),
        ("push", [True, 2], [one, two]),
        ("push", [1.0, 2], [one, two]),
        ("push", [[1], 2], [one, two]),
        ("push", [1, 2], [one]),
        ("push", 1, [one, two]),
    ):
        assert recent.find(*other) is None
    recent.clear()
    assert recent.find("push", [1, 2], [one, two]) is None


def test_lists_of_the_same_verb_take_turns() -> None:
    recent, one, two = Recent(), f(2), f(3)
    recent.keep("push", ["a", "b"], [one, two], [one, two], "both")
    recent.keep("push", ["a"], [two], [two], "one")
    for _ in range(2):
        assert recent.find("push", ["a", "b"], [one, two]) == ("both", [one, two])
        assert recent.find("push", ("a",), [two]) == ("one", [two])
    assert recent.find("push", ["b"], [two]) is None


def test_items_of_lists_that_were_replaced() -> None:
    recent, keys, arrays = Recent(), ["a", "b", "c"], [f(2), f(2), f(2)]
    recent.keep("push", keys, arrays, arrays, "made")
    assert recent.find("push", keys, arrays) is not None
    arrays[1], old = f(2), arrays[1]
    assert recent.find("push", keys, arrays) is None
    arrays[1] = old
    assert recent.find("push", keys, arrays) is not None
    keys[2] = "d"
    assert recent.find("push", keys, arrays) is None


def test_what_can_be_no_key_is_not_found() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no truth")

        __hash__ = None  # type: ignore[assignment]

    recent, arrays = Recent(), [f(2), f(2)]
    recent.keep("push", ["a", "b"], arrays, arrays, "made")
    for odd in (Odd(), f(2), ["a"], None):
        assert recent.find("push", ["a", odd], arrays) is None
        assert recent.find("push", odd, f(2)) is None


def test_arrays_that_are_gone_are_not_mistaken_for_new_ones() -> None:
    recent, one = Recent(), f(2)
    recent.keep("push", 1, one, [one], "made")
    number = id(one)
    del one
    gc.collect()
    for _ in range(1000):
        other = f(2)
        if id(other) == number:
            break
    assert recent.find("push", 1, other) is None
    assert recent.find("push", 1, None) is None


def test_an_array_of_a_list_that_is_gone_is_not_mistaken_for_a_new_one() -> None:
    recent, arrays = Recent(), [f(2), f(2)]
    recent.keep("push", ["a", "b"], arrays, list(arrays), "made")
    number = id(arrays.pop())
    others = [f(2) for _ in range(100)]
    at_its_place = [other for other in others if id(other) == number]
    assert at_its_place, "no new array took the place of the old one: make more"
    assert recent.find("push", ["a", "b"], [arrays[0], at_its_place[0]]) is None


def test_nothing_is_kept_alive() -> None:
    recent, one, several = Recent(), f(2), [f(2), f(2)]
    recent.keep("push", "a", one, [one], "made")
    recent.keep("pull", ["a", "b"], several, list(several), "made")
    references = [weakref.ref(array) for array in (one, *several)]
    del one, several
    assert [reference() for reference in references] == [None] * 3


def test_what_was_converted_or_copied_is_not_kept() -> None:
    recent, one = Recent(), f(2)
    recent.keep("push", 1, one, [one.copy()], "made")
    recent.keep("push", 2, [one, one], [one, one], "made")
    recent.keep("push", 3, one[:], [one], "made")
    assert [recent.find("push", key, one) for key in (1, 2, 3)] == [None] * 3


def test_numpy_resizes_no_array_that_is_referred_to() -> None:
    """On which it rests that an array of one axis and a dtype has one shape."""
    array = f(6)
    reference = weakref.ref(array)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(8, refcheck=False)
    assert reference() is array


def test_calls_that_never_come_again_are_forgotten() -> None:
    recent = Recent()
    arrays = [f(1) for _ in range(70_000)]
    for key, array in enumerate(arrays):
        recent.keep("push", key, array, [array], key)
    assert recent.find("push", 69_999, arrays[69_999]) is not None
    assert recent.find("push", 0, arrays[0]) is None
