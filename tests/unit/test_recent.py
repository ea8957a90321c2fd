"""Calls that come again: what makes them another call after all."""

from __future__ import annotations

import gc
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


def test_what_was_converted_or_copied_is_not_kept() -> None:
    recent, one = Recent(), f(2)
    recent.keep("push", 1, one, [one.copy()], "made")
    recent.keep("push", 2, [one, one], [one, one], "made")
    recent.keep("push", 3, one[:], [one], "made")
    assert [recent.find("push", key, one) for key in (1, 2, 3)] == [None] * 3


def turn(array: np.ndarray) -> None:
    array.shape = (3, 2)


def retype(array: np.ndarray) -> None:
    array.dtype = np.int32


def lock(array: np.ndarray) -> None:
    array.flags.writeable = False


@pytest.mark.parametrize(
    ("verb", "change", "error"),
    [
        ("push", turn, ShapeMismatch),
        ("push", retype, DTypeMismatch),
        ("pull", turn, ShapeMismatch),
        ("pull", lock, UsageError),
    ],
)
@pytest.mark.filterwarnings("ignore:Setting the")
def test_an_array_that_has_become_another(
    kv: ncclkv.KVStore, verb: str, change: Callable[[Any], None], error: type[Exception]
) -> None:
    array = f(2, 3)
    for _ in range(2):
        getattr(kv, verb)([1], [array])
    change(array)
    with pytest.raises(error):
        getattr(kv, verb)([1], [array])


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
