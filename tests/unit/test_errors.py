"""Attributes of errors, which a program reads in place of the text."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv import errors
from ncclkv.errors import KVStoreError
from ncclkv.testing import run_ranks

Raised = tuple[type, Any, tuple[int, ...], str]

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_has_the_attributes(kind: type[KVStoreError]) -> None:
    error = kind("the text", key="w", ranks={3, 1})
    assert (str(error), error.key, error.ranks, error.call) == ("the text", "w", (1, 3), "")
    error.call = "push"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.args, copy.key, copy.ranks, copy.call) == (("the text",), "w", (1, 3), "push")
    later = errors.again(error)
    assert (later.args, later.key, later.ranks, later.call) == (("the text",), "w", (1, 3), "")
    assert (kind("text").key, kind("text").ranks) == (None, ())


def raised(call: Callable[[], object]) -> Raised:
    """Return the class and the attributes of the error that a call raises."""
    with pytest.raises(KVStoreError) as caught:
        call()
    error = caught.value
    return type(error), error.key, error.ranks, error.call


def test_wrong_calls_name_their_key_and_verb() -> None:
    with ncclkv.create("local") as kv:
        kv.init(["w", "b"], [np.zeros(2), np.zeros(3)])
        good, bad = np.zeros(2), np.zeros(4)
        calls: list[tuple[Callable[[], object], Raised]] = [
            (lambda: kv.push(["w", "b"], [good, bad]), (errors.ShapeMismatch, "b", (), "push")),
            (lambda: kv.push("w", []), (errors.UsageError, "w", (), "push")),
            (lambda: kv.push("w", 1j * good), (errors.DTypeMismatch, "w", (), "push")),
            (lambda: kv.push("c", good), (errors.KeyNotInitialized, "c", (), "push")),
            (lambda: kv.pull("w", out=bad), (errors.ShapeMismatch, "w", (), "pull")),
            (lambda: kv.pull(3), (errors.KeyTypeMismatch, 3, (), "pull")),
            (lambda: kv.init("w", good), (errors.KeyAlreadyInitialized, "w", (), "init")),
            (lambda: kv.init("c", np.zeros(2, "U3")), (errors.DTypeMismatch, "c", (), "init")),
            (lambda: kv.reset("w", bad), (errors.ShapeMismatch, "w", (), "reset")),
            (lambda: kv.pull("w", priority="1"), (errors.UsageError, None, (), "pull")),
        ]
        for call, wanted in calls:
            assert raised(call) == wanted


def on_ranks(body: Callable[[ncclkv.KVStore, int], object], **options: Any) -> list[Raised]:
    """Return what each of three ranks raises."""

    def work() -> Raised:
        kv = ncclkv.create("dist", timeout=20, **options)
        kv.init(["w", "b"], [np.zeros(2), np.zeros(3)])
        return raised(lambda: body(kv, kv.rank))

    return run_ranks(3, work)


def test_ranks_that_disagree_are_named() -> None:
    found = on_ranks(lambda kv, rank: kv.init("c", np.zeros(2 + (rank == 1))))
    assert [each[2] for each in found] == [(1,), (0, 2), (1,)]
    assert {each[:2] + each[3:] for each in found} == {(errors.SpecMismatch, None, "init")}


def test_a_rank_that_raises_alone_is_named() -> None:
    found = on_ranks(lambda kv, rank: kv.init("c" if rank else "w", np.zeros(2)))
    assert {each[2] for each in found} == {(0,)}


def test_nonfinite_gradients_name_key_and_ranks() -> None:
    def body(kv: ncclkv.KVStore, rank: int) -> None:
        kv.push("b", np.full(3, np.nan if rank else 1.0))
        kv.pull("b")

    found = on_ranks(body, nonfinite="raise")
    assert set(found) == {(errors.NonFinite, "b", (1, 2), "pull")}


def test_a_missing_rank_is_named() -> None:
    def work() -> Raised | None:
        kv = ncclkv.create("dist", timeout=0.5)
        kv.init("w", np.zeros(2))
        if kv.rank == 1:
            ncclkv.testing.sleep(1.5)
            return None
        kv.push("w", np.ones(2))
        return raised(lambda: kv.pull("w"))

    assert run_ranks(3, work)[0] == (errors.CommTimeout, None, (1,), "pull")


def test_ranks_of_another_call_are_named() -> None:
    def work() -> Raised:
        kv = ncclkv.create("dist", timeout=20)
        kv.init(["w", "b"], [np.zeros(2), np.zeros(2)])
        kv.push("b" if kv.rank == 2 else "w", np.ones(2))
        return raised(kv.wait)

    found = run_ranks(3, work)
    assert {each[0] for each in found} == {errors.OrderMismatch}
    assert {2} == {*found[0][2], *found[1][2]}
    assert not {*found[2][2]} & {2}
