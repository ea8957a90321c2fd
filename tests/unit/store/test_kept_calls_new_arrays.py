"""New arrays in each step: checked by their form, and refused with the words of a first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import KVStoreError, UsageError

KEYS = ["a", "b", "c", "d"]
SHAPES = {"a": (3, 2), "b": (6,), "c": (2, 3), "d": (6,)}

pytestmark = pytest.mark.limit(60)


def new(*, fill: float = 0, views: bool = False) -> list[np.ndarray]:
    """Return an array for each key, which owns its memory or is a view."""
    if views:
        return [np.full(6, fill, np.float32).reshape(SHAPES[key]) for key in KEYS]
    return [np.full(SHAPES[key], fill, np.float32) for key in KEYS]


def opened() -> Any:
    kv = ncclkv.create("local")
    kv.init(KEYS, new())
    return kv


@pytest.mark.parametrize("views", [False, True], ids=["owners", "views"])
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_new_arrays_are_checked_once(checked: list[str], order: int, views: bool) -> None:
    keys = KEYS[::order]
    with opened() as kv:
        for step in range(1, 5):
            values, outs = new(fill=step, views=views)[::order], new(views=views)[::order]
            for number, value in enumerate(values):
                value += 10 * number
            kv.push(keys, values)
            kv.pull(keys, outs)
            others = new(views=views)[::order]
            kv.pushpull(keys, new(fill=-step, views=views)[::order], others)
            last = [] if views else kv.pull(keys)
            kv.push("b", np.full(6, step, np.float32))
            one = np.zeros(6, np.float32)
            kv.pull("b", one)
            if step == 2:
                del checked[:]
            assert [out.flat[0] for out in outs] == [step, step + 10, step + 20, step + 30]
            assert all((out == -step).all() for out in [*others, *last])
            assert (one == step).all()
    assert checked == []


@pytest.mark.parametrize("views", [False, True], ids=["owners", "views"])
def test_the_end_of_a_group_takes_new_arrays(monkeypatch: pytest.MonkeyPatch, views: bool) -> None:
    planned: list[int] = []
    with opened() as kv:
        engine = kv._transfers._engine
        plan = engine.plan_pull
        monkeypatch.setattr(engine, "plan_pull", lambda reads: planned.append(1) or plan(reads))
        for step in range(1, 5):
            outs = new(views=views)
            with kv.group():
                kv.push(KEYS, new(fill=step, views=views))
                kv.pull(KEYS[::-1], outs[::-1])
            if step == 1:
                del planned[:]
            assert all((out == step).all() for out in outs)
    assert planned == []


def locked(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


WRONG: dict[str, Callable[[Any, list[np.ndarray]], Any]] = {
    "shape": lambda kv, arrays: np.zeros((3, 2), np.float32),
    "axes": lambda kv, arrays: np.zeros(6, np.float32),
    "dtype": lambda kv, arrays: np.zeros((2, 3), np.int64),
    "complex": lambda kv, arrays: np.zeros((2, 3), np.complex64),
    "object": lambda kv, arrays: np.zeros((2, 3), object),
    "number": lambda kv, arrays: 1.0,
    "none": lambda kv, arrays: None,
    "text": lambda kv, arrays: "abc",
    "masked": lambda kv, arrays: np.ma.zeros((2, 3), np.float32),
    "read-only": lambda kv, arrays: locked(np.zeros((2, 3), np.float32)),
    "repeated": lambda kv, arrays: np.broadcast_to(np.float32(0), (2, 3)),
    "overlap": lambda kv, arrays: arrays[0].reshape(2, 3),
    "part": lambda kv, arrays: np.ndarray((2, 3), np.float32, arrays[1].data),
    "value": lambda kv, arrays: kv.value("c"),
}


@pytest.mark.parametrize("views", [False, True], ids=["owners", "views"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("verb", ["push", "pull", "pushpull"])
def test_a_wrong_new_array_is_refused_as_in_a_first_call(
    verb: str, wrong: str, views: bool
) -> None:
    first, later = (outcome(verb, wrong, views, before=steps) for steps in (0, 3))
    assert later == first


def outcome(verb: str, wrong: str, views: bool, *, before: int) -> tuple[str, list[bytes]]:
    """Return the error of a call with a wrong array, and all values after it."""
    with opened() as kv:
        kv.push(KEYS, new(fill=7, views=views))  # the first push makes the buckets
        kv.wait()
        kv.reset("d", np.full(6, 8, np.float32))
        for _ in range(before):
            kv.push(KEYS, new(fill=7, views=views))
            kv.reset("d", np.full(6, 8, np.float32))
            kv.pull(KEYS, new(views=views))
            kv.pull("c", new(views=views)[2])
        arrays = new(fill=9, views=views)
        arrays[2] = WRONG[wrong](kv, arrays)
        error = ""
        try:
            getattr(kv, verb)(KEYS, arrays)
            getattr(kv, verb)("c", arrays[2])
        except KVStoreError as caught:
            error = f"{type(caught).__name__}: {caught}"
        values = [array.tobytes() for array in kv.pull(KEYS)]
    return error, values


def test_gradient_views_are_never_pushed_as_other_views() -> None:
    keys = ["b", "d"]
    with opened() as kv:
        for step in range(1, 4):
            kv.push(keys, [np.full(12, step, np.float32)[:6] for _ in keys])
            assert all((value == step).all() for value in kv.pull(keys))
        views = [kv.grad_view(key) for key in keys]
        for number, view in enumerate(views, start=1):
            view[...] = number
        # Crossed: to pack the first key would overwrite what is pushed for the second.
        kv.push(keys, views[::-1])
        assert [value[0] for value in kv.pull(keys)] == [2, 1]


def test_gradient_views_are_never_pulled_into_as_other_views() -> None:
    with opened() as kv:
        kv.grad_view("a")  # makes the buckets: calls are kept from now on
        for _ in range(3):
            for local in (True, False):
                kv.pull("d", np.zeros(12, np.float32)[:6], local=local)
                kv.pull(["a", "d"], new(views=True)[::3], local=local)
        views = [kv.grad_view(key).reshape(SHAPES[key]) for key in KEYS]
        kv.push("b", np.ones(6, np.float32))
        for key, outs in (("d", views[1]), (["a", "d"], [views[0], views[3]])):
            with pytest.raises(UsageError, match="out lies in a grad_view"):
                kv.pull(key, outs, local=True)


def test_an_in_place_push_is_not_repeated_with_other_arrays() -> None:
    with opened() as kv:
        for step in range(1, 4):
            gradients = [kv.grad_view(key) for key in KEYS]
            for gradient in gradients:
                gradient[...] = step
            kv.push(KEYS, gradients)
            assert all((value == step).all() for value in kv.pull(KEYS))
            kv.push(KEYS, new(fill=-step, views=True))
            assert all((value == -step).all() for value in kv.pull(KEYS))


def test_new_arrays_of_a_key_that_is_named_twice_are_added() -> None:
    one = np.ones(6, np.float32)
    with opened() as kv:
        for arrays in (
            [one, one, one],
            *([np.full(6, step + n, np.float32) for n in (1, 2, 4)] for step in range(3)),
        ):
            kv.push(["b", "d", "b"], arrays)
            assert (kv.pull("b") == arrays[0] + arrays[2]).all()
            assert (kv.pull("d") == arrays[1]).all()


@pytest.mark.parametrize("same", [False, True], ids=["new", "same"])
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
@pytest.mark.parametrize("count", [1, 2])
def test_lists_of_arrays_are_checked_once(
    checked: list[str], count: int, order: int, same: bool
) -> None:
    """Call as MXNet's programs do, with a list of arrays for each key: one of each device."""

    def nested() -> list[list[np.ndarray]]:
        return [list(arrays) for arrays in zip(*(new() for _ in range(count)), strict=True)]

    kept = nested(), nested()
    keys = KEYS[::order]
    with opened() as kv:
        for step in range(1, 5):
            values, outs = kept if same else (nested(), nested())
            for number, arrays in enumerate(values):
                for array in arrays:
                    array[...] = step + 10 * number
            kv.push(keys, values[::order])
            kv.pull(keys, outs[::order])
            kv.push("b", values[3])
            kv.pull("b", outs[1])
            assert step == 1 or checked == []
            for number, arrays in enumerate(outs):
                wanted = count * (step + 10 * (3 if number == 1 else number))
                assert all((array == wanted).all() for array in arrays)
            for wrong in ([], [values[0]], [np.zeros(7, np.float32)] * count, values[1] + [None]):
                given = [*values[:1], wrong, *values[2:]]
                with pytest.raises(KVStoreError):
                    kv.push(KEYS, given)
                with pytest.raises(KVStoreError):
                    kv.pull(KEYS, given)
            del checked[:]


def test_a_new_updater_checks_new_arrays_again() -> None:
    with ncclkv.create("local") as kv:
        kv.init("n", np.ones(2, np.int64))
        kv.push("n", np.ones(2, np.int64))
        kv.set_optimizer(ncclkv.optimizer.SGD())
        with pytest.raises(KVStoreError, match="'n' is int64"):
            kv.push("n", np.ones(2, np.int64))
