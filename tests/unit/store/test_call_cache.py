"""The cache of calls: calls that repeat find their entry, all others do not."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from enum import Enum
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.store import call_cache as recent_calls
from ncclkv.store.call_cache import CallCache
from ncclkv.store.kept_calls import call_bytes


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_the_same_arrays_are_found() -> None:
    recent, one, two = CallCache([]), f(2), f(3)
    recent.keep_call("push", [1, 2], [one, two], [one, two], "made")
    assert recent.find_call("push", [1, 2], (one, two)) == ("made", (one, two))
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
        assert recent.find_call(*other) is None
    recent.clear()
    assert recent.find_call("push", [1, 2], [one, two]) is None


def test_calls_of_another_epoch_are_forgotten() -> None:
    cache, one, rule = CallCache([]), f(2), (lambda: None)
    cache.keep_call("push", 1, one, [one], "made")
    cache.enter(rule)
    assert cache.epoch() is rule
    assert cache.find_call("push", 1, one) is None
    cache.keep_call("push", 1, one, [one], "made")
    assert cache.find_call("push", 1, one) == ("made", (one,))
    del rule
    assert cache.epoch() is None, "the cache keeps a rule that is no more in force"


def test_several_lists_of_a_verb_are_cached() -> None:
    recent, one, two = CallCache([]), f(2), f(3)
    recent.keep_call("push", ["a", "b"], [one, two], [one, two], "both")
    recent.keep_call("push", ["a"], [two], [two], "one")
    for _ in range(2):
        assert recent.find_call("push", ["a", "b"], [one, two]) == ("both", [one, two])
        assert recent.find_call("push", ("a",), [two]) == ("one", [two])
    assert recent.find_call("push", ["b"], [two]) is None


def test_a_list_with_a_replaced_item_is_not_found() -> None:
    recent, keys, arrays = CallCache([]), ["a", "b", "c"], [f(2), f(2), f(2)]
    recent.keep_call("push", keys, arrays, arrays, "made")
    assert recent.find_call("push", keys, arrays) is not None
    arrays[1], old = f(2), arrays[1]
    assert recent.find_call("push", keys, arrays) is None
    arrays[1] = old
    assert recent.find_call("push", keys, arrays) is not None
    keys[2] = "d"
    assert recent.find_call("push", keys, arrays) is None


def test_unhashable_keys_are_not_found() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no truth")

        __hash__ = None  # type: ignore[assignment]

    recent, arrays = CallCache([]), [f(2), f(2)]
    recent.keep_call("push", ["a", "b"], arrays, arrays, "made")
    for odd in (Odd(), f(2), ["a"], None):
        assert recent.find_call("push", ["a", odd], arrays) is None
        assert recent.find_call("push", odd, f(2)) is None


def test_a_new_array_at_a_freed_address_is_not_found() -> None:
    recent, one = CallCache([]), f(2)
    recent.keep_call("push", 1, one, [one], "made")
    number = id(one)
    del one
    gc.collect()
    for _ in range(1000):
        other = f(2)
        if id(other) == number:
            break
    assert recent.find_call("push", 1, other) is None
    assert recent.find_call("push", 1, None) is None


def test_a_list_with_a_new_array_at_a_freed_address_is_not_found() -> None:
    recent, arrays = CallCache([]), [f(2), f(2)]
    recent.keep_call("push", ["a", "b"], arrays, list(arrays), "made")
    number = id(arrays.pop())
    others = [f(2) for _ in range(100)]
    at_its_place = [other for other in others if id(other) == number]
    assert at_its_place, "no new array took the place of the old one: make more"
    assert recent.find_call("push", ["a", "b"], [arrays[0], at_its_place[0]]) is None


def test_cached_arrays_are_not_kept_alive() -> None:
    recent, one, several = CallCache([]), f(2), [f(2), f(2)]
    recent.keep_call("push", "a", one, [one], "made")
    recent.keep_call("pull", ["a", "b"], several, list(several), "made")
    references = [weakref.ref(array) for array in (one, *several)]
    del one, several
    assert [reference() for reference in references] == [None] * 3


def test_converted_and_copied_arrays_are_not_cached() -> None:
    recent, one = CallCache([]), f(2)
    recent.keep_call("push", 1, one, [one.copy()], "made")
    recent.keep_call("push", 2, [one, one], [one, one], "made")
    recent.keep_call("push", 3, one[:], [one], "made")
    assert [recent.find_call("push", key, one) for key in (1, 2, 3)] == [None] * 3


def test_numpy_resizes_no_array_that_is_referred_to() -> None:
    """Check NumPy's refusal: the cache assumes that a referenced array keeps its shape."""
    array = f(6)
    reference = weakref.ref(array)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(8, refcheck=False)
    assert reference() is array


def test_a_push_and_a_pull_of_many_keys_do_not_evict_each_other() -> None:
    keys = list(range(40_000))
    recent, values, outs = CallCache(keys), [f(1) for _ in keys], [f(1) for _ in keys]
    recent.keep_call("push", keys, values, values, "pushed")
    recent.keep_call("pull", keys, outs, outs, "pulled")
    for key, value in zip(keys, values, strict=True):
        recent.keep_call("push", key, value, [value], key)
    assert recent.find_call("push", keys, values) == ("pushed", values)
    assert recent.find_call("pull", keys, outs) == ("pulled", outs)
    assert all(recent.find_call("push", key, values[key]) == (key, (values[key],)) for key in keys)


def test_the_oldest_lists_are_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [f(1), f(1)]
    monkeypatch.setattr(recent_calls, "BYTES", 0)
    recent = CallCache(range(1000))  # memory for a push and a pull of 1000 keys
    made = range(2000)
    for number in made:
        recent.keep_call("push", [number, -number], arrays, arrays, number)
    found = [recent.find_call("push", [number, -number], arrays) is not None for number in made]
    kept = sum(found)
    assert 200 < kept < 500
    assert found == [False] * (2000 - kept) + [True] * kept


def test_repeated_lists_of_new_arrays_are_cached_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_calls, "BYTES", 0)
    recent, first = CallCache(range(10)), [f(1), f(1)]
    recent.keep_call("pull", [1, 2], first, first, "first")
    for _ in range(100):
        arrays = [f(1), f(1)]
        recent.keep_call("push", [1, 2], arrays, arrays, "again")
    assert recent.find_call("pull", [1, 2], first) == ("first", first)


@pytest.mark.parametrize("length", [2, 50, 1000])
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_kept_calls_take_no_more_memory_than_is_counted(verb: str, length: int) -> None:
    keys, arrays = list(range(1001)), [f(1) for _ in range(1001)]
    calls = {2: 500, 50: 50, 1000: 1}[length]
    with ncclkv.create("local") as kv:
        kv.init(keys, arrays)
        kv.push(keys, arrays)
        kv.pull(keys, arrays)
        gc.collect()
        tracemalloc.start()
        try:
            for start in range(calls):
                chosen = sorted((start + step * 7) % 1001 for step in range(length))
                getattr(kv, verb)(chosen, [arrays[key] for key in chosen])
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 0.3 < taken / (calls * call_bytes(length)) < 1.05


class Named(str):
    """A key that compares equal to every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("a")


class Names(str, Enum):
    A = "a"


def test_a_key_that_only_equals_a_kept_one_is_not_found() -> None:
    recent, one, two = CallCache([]), f(2), f(3)
    recent.keep_call("push", ["a", "b"], [one, two], [one, two], "made")
    assert recent.find_call("push", [Named("x"), "b"], [one, two]) is None
    kept = Named("a")
    recent.keep_call("pull", kept, one, [one], "one")
    recent.keep_call("pull", [kept, Names.A], [one, two], [one, two], "list")
    assert recent.find_call("pull", kept, one) is not None
    assert recent.find_call("pull", [kept, Names.A], [one, two]) is not None
    assert recent.find_call("pull", Named("b"), one) is None
    assert recent.find_call("pull", [Named("b"), Names.A], [one, two]) is None


def test_equal_keys_that_are_other_objects_are_found() -> None:
    recent, arrays = CallCache([]), [f(2), f(3)]
    for kind, texts in ((str, ["10_1", "10_2"]), (int, ["1001", "1002"]), (np.int64, ["5", "6"])):
        keys, anew = ([kind(text[:1] + text[1:]) for text in texts] for _ in range(2))
        recent.keep_call("push", keys, arrays, arrays, "made")
        assert all(mine is not kept for mine, kept in zip(anew, keys, strict=True))
        assert recent.find_call("push", anew, arrays) is not None


# New arrays in place of the kept ones


def outside(arrays: object) -> bool:
    """Return True: no array lies in a bucket, and none shares memory."""
    return True


def inside(arrays: object) -> bool:
    return False


def test_new_arrays_like_the_kept_ones_are_served() -> None:
    cache, keys, arrays = CallCache([]), ["a", "b", "c"], [f(2), f(3, 2), f(2)]
    cache.keep_call("pull", keys, arrays, arrays[::-1], "made")
    cache.keep_call("pull", "a", arrays[0], [arrays[0]], "one")
    del arrays
    for _ in range(3):
        anew = [f(2), f(3, 2), f(2)]
        assert cache.find_call("pull", keys, anew) is None
        made, row = cache.find_alike("pull", keys, anew, inside) or ("", ())
        assert made == "made"
        assert [*map(id, row)] == [*map(id, anew[::-1])]
        assert cache.find_call("pull", keys, anew) is not None, "the new arrays are kept"
        assert cache.find_alike("pull", "a", anew[0], inside) == ("one", (anew[0],))
        assert cache.find_call("pull", "a", anew[0]) is not None
        del anew, row


def replaced(array: np.ndarray) -> list[np.ndarray]:
    arrays = [f(2), f(3, 2), f(2)]
    arrays[1] = array
    return arrays


class Sub(np.ndarray):
    pass


ODD = {
    "shape": f(2, 3),
    "axes": f(6),
    "dtype": np.ones((3, 2), np.int32),
    "byte order": np.ones((3, 2), ">f4"),
    "Fortran order": np.ones((3, 2), np.float32, order="F"),
    "strides": np.ones((3, 4), np.float32)[:, ::2],
    "subclass": f(3, 2).view(Sub),
    "view": f(6).reshape(3, 2),
    "number": 1.0,
    "empty list": [],
    "list in a list": [[f(3, 2)]],
    "two arrays": [f(3, 2), f(3, 2)],
    "none": None,
}


@pytest.mark.parametrize("odd", ODD)
def test_an_array_unlike_the_kept_one_is_not_served(odd: str) -> None:
    cache, keys, arrays = CallCache([]), ["a", "b", "c"], [f(2), f(3, 2), f(2)]
    cache.keep_call("pull", keys, arrays, arrays, "made")
    cache.keep_call("pull", "b", arrays[1], [arrays[1]], "one")
    given: Any = ODD[odd]
    assert cache.find_alike("pull", keys, replaced(given), outside) is None
    assert cache.find_alike("pull", "b", given, outside) is None


def test_a_read_only_array_is_not_served() -> None:
    cache, arrays, anew = CallCache([]), [f(2), f(2)], [f(2), f(2)]
    cache.keep_call("pull", ["a", "b"], arrays, arrays, "made")
    cache.keep_call("pull", "b", arrays[1], [arrays[1]], "one")
    anew[1].flags.writeable = False
    assert cache.find_alike("pull", ["a", "b"], anew, outside) is None
    assert cache.find_alike("pull", "b", anew[1], outside) is None


def test_views_are_served_if_they_lie_outside() -> None:
    cache, arrays = CallCache([]), [f(4)[:2], f(6).reshape(3, 2)]
    cache.keep_call("pull", ["a", "b"], arrays, arrays, "made")
    cache.keep_call("pull", "b", arrays[1], [arrays[1]], "one")
    anew = [f(4)[:2], f(6).reshape(3, 2)]
    assert cache.find_alike("pull", ["a", "b"], anew, inside) is None
    assert cache.find_alike("pull", "b", anew[1], inside) is None
    assert cache.find_alike("pull", ["a", "b"], anew, outside) == ("made", anew)
    assert cache.find_alike("pull", "b", anew[1], outside) == ("one", (anew[1],))


def test_an_array_given_twice_is_not_served() -> None:
    cache, arrays, one = CallCache([]), [f(2), f(2)], f(2)
    for verb in ("pull", "push"):
        cache.keep_call(verb, ["a", "b"], arrays, arrays, "made")
        found = cache.find_alike(verb, ["a", "b"], [one, one], outside)
        assert (found is None) == (verb == "pull")
    for verb in ("pull", "push"):
        cache.keep_call(verb, ["a", "b"], [one, one], [one, one], "made of one")
        assert cache.find_alike(verb, ["a", "b"], [f(2), f(2)], outside) is None


def test_other_keys_and_forms_for_one_call_are_not_served() -> None:
    cache, arrays = CallCache([]), [f(2), f(2)]
    cache.keep_call("push", [1, 2], arrays, arrays, "made")
    cache.keep_call("push", 1, arrays[0], [arrays[0]], "one")
    anew = [f(2), f(2)]
    for other in ([2, 1], [1, True], [1.0, 2], [1], [[1], 2], [1, 2, 3]):
        assert cache.find_alike("push", other, anew, outside) is None
    for key in (True, 1.0, 2, [1], {}):
        assert cache.find_alike("push", key, anew[0], outside) is None
    assert cache.find_alike("pull", [1, 2], anew, outside) is None
    cache.keep_call("push", [1, 2], arrays, arrays, "made", serves_others=False)
    cache.keep_call("push", 1, arrays[0], [arrays[0]], "one", serves_others=False)
    assert cache.find_alike("push", [1, 2], anew, outside) is None
    assert cache.find_alike("push", 1, anew[0], outside) is None
