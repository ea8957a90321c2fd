"""Calls that a lack of memory or Ctrl-C interrupts: no part of them is silently made twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import CommAborted, RankLost
from ncclkv.optimizer import SGD
from ncclkv.testing import run_ranks
from tests.harness.context import context_of

LENGTH = 20_000
KEYS = ["a", "b"]
ERRORS = [MemoryError, KeyboardInterrupt]


def store(name: str = "local", **options: Any) -> Any:
    """Return a store of two keys in two buckets, which hold zeros."""
    kv = ncclkv.create(name, bucket_bytes=0, **options)
    kv.init(KEYS, [np.zeros(LENGTH), np.zeros(LENGTH)])
    return kv


def raise_once(owner: Any, name: str, error: type[BaseException], number: int) -> None:
    """Let the call of this number, from 0, of a method raise; other calls work."""
    method, count = getattr(owner, name), iter(range(1000))

    def call(*arguments: Any, **named: Any) -> Any:
        if next(count) == number:
            setattr(owner, name, method)
            raise error("today")
        return method(*arguments, **named)

    setattr(owner, name, call)


def ones() -> list[Any]:
    return [np.ones(LENGTH), np.ones(LENGTH)]


def group(kv: Any) -> None:
    with kv.group():
        kv.push(KEYS, ones())
        kv.pull(KEYS, out=ones())


def first(kv: Any) -> list[float]:
    return [float(value[0]) for value in kv.pull(KEYS)]


PUSHES: dict[str, Callable[[Any], object]] = {
    "push": lambda kv: kv.push(KEYS, ones()),
    "pushpull": lambda kv: kv.pushpull(KEYS, ones()),
    "group": group,
}

SECOND = {"push": 1, "pushpull": 1, "group": 3}
"""The launch of the second bucket; a group begins with a flush of both."""


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("verb", PUSHES)
def test_a_push_that_an_optimizer_has_applied_in_part_breaks_a_store_of_one_rank(
    verb: str, error: type[BaseException]
) -> None:
    with store() as kv:
        kv.set_optimizer(SGD(learning_rate=1.0))
        PUSHES[verb](kv)
        raise_once(context_of(kv).engine._reducer, "launch", error, SECOND[verb])
        with pytest.raises(error, match="today"):
            PUSHES[verb](kv)
        with pytest.raises(CommAborted) as caught:
            PUSHES[verb](kv)
        assert str(caught.value) == (
            f"rank 0 of 1: {verb} was interrupted by {error.__name__}, so some keys may be updated "
            f"and others not; close the store and make a new one"
        )


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("verb", PUSHES)
def test_a_push_that_replaces_values_may_be_repeated_on_one_rank(
    verb: str, error: type[BaseException]
) -> None:
    with store() as kv:
        PUSHES[verb](kv)
        kv.reset(KEYS, [np.zeros(LENGTH), np.zeros(LENGTH)])
        raise_once(context_of(kv).engine._reducer, "launch", error, SECOND[verb])
        with pytest.raises(error, match="today"):
            PUSHES[verb](kv)
        PUSHES[verb](kv)
        assert first(kv) == [1, 1]


def test_a_flush_interrupted_in_a_bucket_breaks_a_store_of_one_rank() -> None:
    """The next flush would apply the gradient again."""
    with ncclkv.create("local") as kv:
        kv.init(KEYS, [np.zeros(LENGTH), np.zeros(LENGTH)])
        kv.set_optimizer(SGD(learning_rate=1.0))
        kv.push("a", np.ones(LENGTH))
        raise_once(context_of(kv).engine.layout["a"].state, "add", KeyboardInterrupt, 0)
        with pytest.raises(KeyboardInterrupt):
            kv.pull("a")
        with pytest.raises(CommAborted, match="pull was interrupted by KeyboardInterrupt"):
            kv.pull("a")


@pytest.mark.parametrize("number", [0, 1])
def test_an_optimizer_that_lacks_memory_leaves_the_old_rule_on_one_rank(number: int) -> None:
    with store() as kv:
        kv.set_optimizer(SGD(learning_rate=1.0, momentum=0.5))
        kv.push(KEYS, ones())
        raise_once(context_of(kv).comm.kernels, "zeros", MemoryError, number)
        with pytest.raises(MemoryError, match="today"):
            kv.set_optimizer(SGD(learning_rate=4.0, momentum=0.25), reset_states=True)
        kv.push(KEYS, ones())
        # Momenta -1 and -1.5.
        assert first(kv) == [-2.5, -2.5]
        kv.set_optimizer(SGD(learning_rate=4.0, momentum=0.25), reset_states=True)
        kv.push(KEYS, ones())
        assert first(kv) == [-6.5, -6.5]


def test_an_optimizer_that_lacks_memory_breaks_a_store_of_several_ranks() -> None:
    def body() -> str:
        kv = store("threads")
        PUSHES["push"](kv)
        kv.barrier()
        if kv.rank == 1:
            raise_once(context_of(kv).comm, "node_shared", MemoryError, 1)
            with pytest.raises(MemoryError, match="today"):
                kv.set_optimizer(SGD(learning_rate=1.0, momentum=0.5))
        else:
            kv.set_optimizer(SGD(learning_rate=1.0, momentum=0.5))
        try:
            kv.pushpull(KEYS, ones())
        except (CommAborted, RankLost) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            kv.close()
        return "no error"

    for rank, text in enumerate(run_ranks(3, body)):
        cause = "set_optimizer was interrupted by MemoryError, so this rank may be a call behind"
        assert text.startswith("CommAborted" if rank == 1 else "RankLost")
        assert f"rank 1 of 3: {cause}" in text, text


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("owner", "name"),
    [("kernels", "copy"), ("engine", "pack"), ("layout", "check_outs"), ("engine", "plan_pull")],
)
def test_a_group_that_fails_before_its_record_pushes_nothing_on_one_rank(
    owner: str, name: str, error: type[BaseException]
) -> None:
    def block(kv: Any) -> None:
        with kv.group():
            kv.push(KEYS, ones())
            kv.push("a", np.ones(LENGTH))
            kv.pull("a", out=np.zeros(LENGTH))
            if name != "copy":
                raise_once(part, name, error, 0)

    with store() as kv:
        kv.set_optimizer(SGD(learning_rate=1.0))
        engine = context_of(kv).engine
        part = {"engine": engine, "kernels": engine.kernels, "layout": engine.layout}[owner]
        if name == "copy":
            raise_once(part, name, error, 0)
        with pytest.raises(error, match="today"):
            block(kv)
        assert first(kv) == [0, 0]
        kv.push(KEYS, ones())
        assert first(kv) == [-1, -1]


@pytest.mark.parametrize("number", [0, 1])
def test_a_push_in_a_group_that_lacks_memory_adds_nothing_to_it(number: int) -> None:
    with store() as kv:
        kv.set_optimizer(SGD(learning_rate=1.0))
        kv.push(KEYS, [np.full(LENGTH, 7.0), np.full(LENGTH, 7.0)])
        assert first(kv) == [-7, -7]
        with kv.group():
            raise_once(context_of(kv).engine, "_pack", MemoryError, number)
            with pytest.raises(MemoryError, match="today"):
                kv.push(KEYS, ones())
            kv.push(KEYS, ones())
            raise_once(context_of(kv).comm.kernels, "copy", MemoryError, number)
            with pytest.raises(MemoryError, match="today"):
                kv.push("a", [np.ones(LENGTH), np.ones(LENGTH)])
            kv.push("a", [np.ones(LENGTH), np.ones(LENGTH)])
        assert first(kv) == [-10, -8]


def test_a_group_that_lacks_memory_at_its_end_breaks_a_store_of_several_ranks() -> None:
    def body() -> str:
        kv = store("threads")
        PUSHES["push"](kv)
        kv.barrier()
        try:
            with kv.group():
                kv.push(KEYS, ones())
                if kv.rank == 1:
                    raise_once(context_of(kv).engine._reducer, "launch", MemoryError, 1)
            kv.pull(KEYS)
        except (MemoryError, RankLost) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            kv.close()
        return "no error"

    texts = run_ranks(3, body)
    assert texts[1] == "MemoryError: today"
    for text in texts[::2]:
        assert text.startswith("RankLost")
        assert "rank 1 of 3: group was interrupted by MemoryError" in text, text


def test_a_push_left_in_an_uneven_block_is_applied_later_on_one_rank() -> None:
    def block(kv: Any) -> None:
        with kv.uneven():
            kv.push("a", np.ones(LENGTH))
            raise ZeroDivisionError

    with store() as kv:
        kv.set_optimizer(SGD(learning_rate=1.0))
        with pytest.raises(ZeroDivisionError):
            block(kv)
        assert first(kv) == [-1, 0]
