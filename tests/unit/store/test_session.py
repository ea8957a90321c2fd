"""Verbs called by a signal handler inside another verb are refused, and the other continues."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from tests.harness.context import context_of

MOMENT = 0.0005
"""Seconds between two signals."""


class Ringing:
    """An array that sends this process a signal whenever the store reads its attributes."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@contextmanager
def handled(number: int, handler: Callable[[], object]) -> Iterator[None]:
    """Call `handler` when a signal arrives."""
    before = signal.signal(number, lambda *_: handler() and None)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init(["a", "b"], [np.full(2, 2.0), np.full(2, 4.0)])
        yield store


CALLS: dict[str, Callable[[ncclkv.KVStore], object]] = {
    "push": lambda kv: kv.push("b", np.ones(2)),
    "pull": lambda kv: kv.pull("b", local=True),
    "pushpull": lambda kv: kv.pushpull("b", np.ones(2)),
    "wait": lambda kv: kv.wait(),
    "barrier": lambda kv: kv.barrier(),
    "init": lambda kv: kv.init("c", np.ones(2)),
    "reset": lambda kv: kv.reset("b", np.ones(2)),
    "value": lambda kv: kv.value("b"),
    "grad_view": lambda kv: kv.grad_view("b"),
    "group": lambda kv: kv.group().__enter__(),
    "overlap": lambda kv: kv.overlap().__enter__(),
    "uneven": lambda kv: kv.uneven().__enter__(),
    "set_updater": lambda kv: kv.set_updater(print),
    "set_optimizer": lambda kv: kv.set_optimizer(ncclkv.optimizer.SGD()),
    "save": lambda kv: kv.save("/nonexistent"),
    "load": lambda kv: kv.load("/nonexistent"),
    "close": lambda kv: kv.close(),
    "create": lambda kv: ncclkv.create("local"),
}


@pytest.mark.parametrize("verb", CALLS)
def test_every_verb_is_refused_in_a_handler(kv: ncclkv.KVStore, verb: str) -> None:
    said: list[str] = []

    def call() -> None:
        with pytest.raises(UsageError) as caught:
            CALLS[verb](kv)
        said.append(str(caught.value))

    out = np.zeros(2)
    with handled(signal.SIGUSR1, call):
        kv.push("a", Ringing(np.full(2, 5.0)))
        kv.pull("a", out=Ringing(out))
    for text, inside in zip(said, ["push", "pull"], strict=True):
        assert (
            f"{verb} was called inside {inside}, by a signal handler, a destructor or a function "
            f"that {inside} calls; set a flag there, and call {verb} after {inside} has returned"
        ) in text
    assert out.tolist() == [5, 5]
    assert kv.pull("b").tolist() == [4, 4]
    assert list(kv.keys()) == ["a", "b"]


def test_another_store_is_refused_too(kv: ncclkv.KVStore) -> None:
    # A wait advances the collectives of all stores of the thread.
    with ncclkv.create("local") as other:
        other.init("x", np.zeros(2))

        def call() -> None:
            with pytest.raises(UsageError, match="rank 0 of 1: pull was called inside push"):
                other.pull("x")

        with handled(signal.SIGUSR1, call):
            kv.push("a", Ringing(np.ones(2)))
        assert other.pull("x").tolist() == [0, 0]
        assert kv.pull("a").tolist() == [1, 1]


def test_an_exception_of_the_handler_leaves_the_verb(kv: ncclkv.KVStore) -> None:
    inside = pytest.raises(UsageError, match="pull was called inside push")
    with handled(signal.SIGUSR1, lambda: kv.pull("a")), inside:
        kv.push("a", Ringing(np.ones(2)))
    assert kv.pull("a").tolist() == [2, 2]


def test_a_handler_may_call_verbs_between_verbs(kv: ncclkv.KVStore) -> None:
    got: list[Any] = []
    with handled(signal.SIGUSR1, lambda: got.append(kv.pull("a"))):
        signal.raise_signal(signal.SIGUSR1)
        with kv.group():
            kv.push("b", np.ones(2))
    assert got[0].tolist() == [2, 2]


def test_an_exception_at_the_end_of_a_verb_leaves_the_store_usable(kv: ncclkv.KVStore) -> None:
    running = context_of(kv).session.running
    running.verb = "push"  # the state that Ctrl-C leaves just before the verb's end is recorded
    assert kv.pull("a").tolist() == [2, 2]
    assert not running.verb


def test_an_updater_may_use_other_stores(kv: ncclkv.KVStore) -> None:
    with ncclkv.create("local") as other:
        other.init("seen", np.zeros(2))

        def update(key: Any, value: Any, stored: Any) -> None:
            other.push("seen", value)
            with pytest.raises(UsageError, match="pull was called inside an updater"):
                kv.pull("a")
            with ncclkv.create("local") as third:
                third.init("x", stored)

        kv.set_updater(update)
        kv.push("a", np.full(2, 3.0))
        assert other.pull("seen").tolist() == [3, 3]


def test_signals_at_any_moment_lose_no_push() -> None:
    """Check a handler that pushes between verbs and is refused inside them, hundreds of times."""
    refused = pushed = steps = 0
    keys = [f"k{number}" for number in range(40)]
    with ncclkv.create("local", bucket_bytes=64) as kv:

        def update(key: Any, value: Any, stored: Any) -> None:
            stored += value

        def push() -> None:
            nonlocal refused, pushed
            try:
                kv.push("handler", np.ones(1))
                pushed += 1
            except UsageError:
                refused += 1
            signal.setitimer(signal.ITIMER_REAL, MOMENT)  # once: a handler can be interrupted, too

        kv.init([*keys, "handler"], [np.zeros(1)] * 41)
        kv.set_updater(update)
        with handled(signal.SIGALRM, push):
            signal.setitimer(signal.ITIMER_REAL, MOMENT)
            try:
                while refused < 200 and steps < 100_000:
                    kv.push(keys[steps % 40], np.ones(1))
                    kv.push(keys, [np.ones(1)] * 40)
                    steps += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        assert refused >= 200
        assert kv.pull("handler").tolist() == [pushed]
        assert float(sum(kv.pull(keys)).sum()) == 41 * steps
