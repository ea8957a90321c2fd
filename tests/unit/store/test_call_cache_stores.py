"""Repeated calls of a store, and changes that make a call differ from the cached one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
import ncclkv.optimizer as optimizer
from ncclkv.errors import DTypeMismatch, KeyTypeMismatch, ShapeMismatch, UsageError
from ncclkv.store.transfers import Transfers


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init([1, 2], [f(2, 3), f(6)])
        yield store


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
def test_an_array_changed_in_place_is_checked_again(
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
def test_an_out_reshaped_before_the_end_of_a_group() -> None:
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


def test_a_key_that_equals_another_one_is_still_refused(kv: ncclkv.KVStore) -> None:
    array = f(2, 3)
    kv.push(1, array)
    for key in (True, 1.0):
        with pytest.raises(KeyTypeMismatch):
            kv.push(key, array)


def test_a_new_optimizer_that_refuses_a_key_is_checked_at_a_repeated_push() -> None:
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


def test_a_repeated_push_of_grad_view_is_refused_before_its_flush(
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


def test_a_repeated_pull_into_views_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    new_pull = Transfers._new_pull

    def count(self: Transfers, verb: str, *given: Any, **named: Any) -> Any:
        checked.append(verb)
        return new_pull(self, verb, *given, **named)

    monkeypatch.setattr(Transfers, "_new_pull", count)
    with ncclkv.create("local", bucket_bytes=16) as kv:
        kv.init(["a", "b"], [f(6), f(6)])
        views = [kv.grad_view(key) for key in "ab"]
        for step in range(4):
            for view in views:
                view[...] = step
            kv.pushpull(["a", "b"], views)
            assert all((view == step).all() for view in views)
        assert checked == ["pushpull"]
        for _ in range(2):  # the bucket of b is not flushed by a pull of a: checked at each call
            kv.pull("a", out=views[1])
        assert checked == ["pushpull", "pull", "pull"]
