"""Calls that come again: what makes them another call after all."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
import ncclkv.optimizer as optimizer
from ncclkv.errors import DTypeMismatch, KeyTypeMismatch, ShapeMismatch, UsageError
from ncclkv.store.recent import Recent


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init([1, 2], [f(2, 3), f(6)])
        yield store


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


def turn(array: np.ndarray) -> None:
    array.shape = array.shape[::-1] if array.ndim > 1 else (array.size, 1)


def wrap(array: np.ndarray) -> None:
    array.shape = (1, *array.shape)


def resize(array: np.ndarray) -> None:
    array.resize(2, array.size // 2, refcheck=False)


def retype(array: np.ndarray) -> None:
    array.dtype = np.int32


def halve(array: np.ndarray) -> None:
    array.dtype = np.float16


def lock(array: np.ndarray) -> None:
    array.flags.writeable = False


def repeat(array: np.ndarray) -> None:
    array.strides = (0,) * array.ndim


CHANGES = [
    ("push", turn, ShapeMismatch),
    ("push", wrap, ShapeMismatch),
    ("push", resize, ShapeMismatch),
    ("push", retype, DTypeMismatch),
    ("push", halve, (ShapeMismatch, DTypeMismatch)),
    ("pull", turn, ShapeMismatch),
    ("pull", wrap, ShapeMismatch),
    ("pull", resize, ShapeMismatch),
    ("pull", halve, ShapeMismatch),
    ("pull", lock, UsageError),
    ("pull", repeat, UsageError),
]


@pytest.mark.parametrize(("verb", "change", "error"), CHANGES)
@pytest.mark.parametrize("shape", [(4, 3), (12,)], ids=["plane", "row"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
@pytest.mark.filterwarnings("ignore:Setting the")
def test_an_array_that_has_become_another(
    verb: str,
    change: Callable[[Any], None],
    error: type[Exception],
    shape: tuple[int, ...],
    mixed: bool,
) -> None:
    keys = ["a", "b", "c", "d"]
    arrays = [f(*shape) for _ in keys]
    if mixed:
        arrays[0] = np.ones((2, 2, 2))
    with ncclkv.create("local") as kv:
        kv.init(keys, arrays)
        kv.push(keys, [array + 1 for array in arrays])
        for _ in range(2):
            getattr(kv, verb)(keys, arrays)
            getattr(kv, verb)("c", arrays[2])
        change(arrays[2])
        given = [array.tobytes() for array in arrays]
        values = kv.pull(keys)
        for key, array in ((keys, arrays), ("c", arrays[2])):
            with pytest.raises(error):
                getattr(kv, verb)(key, array)
        assert [array.tobytes() for array in arrays] == given
        assert all(map(np.array_equal, kv.pull(keys), values))


@pytest.mark.filterwarnings("ignore:Setting the")
def test_an_out_of_another_dtype_or_order_is_written_as_it_is_now(kv: ncclkv.KVStore) -> None:
    outs = [f(2, 3), f(6)]
    kv.push([1, 2], [f(2, 3), np.arange(6, dtype=np.float32)])
    for _ in range(2):
        kv.pull([1, 2], outs)
    retype(outs[0])
    kv.pull([1, 2], outs)
    assert outs[0].tolist() == [[1] * 3] * 2
    room = np.zeros((6, 2), np.float32)
    outs[1] = room[:, 0]
    kv.pull([1, 2], outs)
    outs[1].strides = (4,)
    kv.pull([1, 2], outs)
    assert room.ravel().tolist() == [0, 1, 2, 3, 4, 5, 3, 0, 4, 0, 5, 0]


@pytest.mark.filterwarnings("ignore:Setting the")
def test_an_out_that_is_turned_before_the_end_of_a_group() -> None:
    with ncclkv.create("local") as kv:
        kv.init(["a", "b"], [f(6), f(6)])
        values, outs = [f(6), f(6)], [f(6), f(6)]
        for step in range(4):
            for value in values:
                value[:] = np.arange(6) * step
            with kv.group():
                for key, value, out in zip("ab", values, outs, strict=True):
                    kv.push(key, value)
                    kv.pull(key, out=out)
                if step > 1:
                    outs[1].shape = (2, 3)
            assert all((out.ravel() == np.arange(6) * step).all() for out in outs)
            outs[1].shape = (6,)


@pytest.mark.filterwarnings("ignore:Setting the")
def test_a_value_in_another_order_is_read_as_it_is_now(kv: ncclkv.KVStore) -> None:
    values = [f(2, 3), np.arange(12, dtype=np.float32)[::2]]
    for _ in range(2):
        kv.push([1, 2], values)
        assert kv.pull(2).tolist() == [0, 2, 4, 6, 8, 10]
    values[1].strides = (4,)
    kv.push([1, 2], values)
    assert kv.pull(2).tolist() == [0, 1, 2, 3, 4, 5]


def test_numpy_resizes_no_array_that_is_referred_to() -> None:
    """On which it rests that an array of one axis and a dtype has one shape."""
    array = f(6)
    reference = weakref.ref(array)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(8, refcheck=False)
    assert reference() is array


def test_a_key_that_equals_another_one_is_still_refused(kv: ncclkv.KVStore) -> None:
    array = f(2, 3)
    kv.push(1, array)
    for key in (True, 1.0):
        with pytest.raises(KeyTypeMismatch):
            kv.push(key, array)


def test_an_optimizer_that_refuses_a_key_is_asked_anew() -> None:
    with ncclkv.create("local") as kv:
        kv.init("n", np.ones(2, np.int64))
        array = np.ones(2, np.int64)
        kv.push("n", array)
        kv.set_optimizer(optimizer.SGD())
        with pytest.raises(DTypeMismatch, match="'n' is int64"):
            kv.push("n", array)


def test_contents_are_read_and_written_each_time(kv: ncclkv.KVStore) -> None:
    values, outs = [f(2, 3), f(6)], [f(2, 3), f(6)]
    for step in range(5):
        for value in values:
            value[...] = step
        kv.push([1, 2], values)
        kv.pull([1, 2], outs)
        assert all((out == step).all() for out in outs)


def test_a_gradient_of_the_stores_own_is_still_refused_before_its_flush(
    kv: ncclkv.KVStore,
) -> None:
    gradients = [kv.grad_view(key) for key in (1, 2)]
    for step in range(3):
        for gradient in gradients:
            gradient[...] = step
        kv.push([1, 2], gradients)
        with pytest.raises(UsageError, match="its grad_view was pushed"):
            kv.push([1, 2], gradients)
        assert all((value == step).all() for value in kv.pull([1, 2]))


def test_calls_that_never_come_again_are_forgotten() -> None:
    recent = Recent()
    arrays = [f(1) for _ in range(70_000)]
    for key, array in enumerate(arrays):
        recent.keep("push", key, array, [array], key)
    assert recent.find("push", 69_999, arrays[69_999]) is not None
    assert recent.find("push", 0, arrays[0]) is None
