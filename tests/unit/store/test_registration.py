"""New values of keys: one exchange, however many keys."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.optimizer import SGD
from ncclkv.testing import run_ranks
from tests.harness.context import context_of


def test_a_reset_of_several_keys_flushes_once() -> None:
    def body() -> tuple[list[str], list[float]]:
        with ncclkv.create("threads", nonfinite="raise", bucket_bytes=0) as kv:
            keys = ["a", "b", "c"]
            kv.init(keys, [np.zeros(4)] * 3)
            kv.push(keys, [np.ones(4)] * 3)
            control, labels = context_of(kv).comm.control, []
            allgather = control.allgather

            def counted(item: Any, label: str = "") -> Any:
                labels.append(label)
                return allgather(item, label)

            control.allgather = counted
            kv.reset(keys, [np.full(4, 5.0)] * 3)
            del control.allgather
            return labels, [float(value[0]) for value in kv.pull(keys)]

    assert run_ranks(2, body) == [(["agreement on reset", "the keys pushed"], [5, 5, 5])] * 2


def calls_to_add(kv: Any, keys: range) -> int:
    """Return the number of Python functions that are entered to add keys, one by one, and use them.

    A resumption of a generator counts as an entry.
    """
    entered = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    value = np.ones(4, np.float32)
    sys.setprofile(profile)
    try:
        for key in keys:
            kv.init(key, value)
            kv.push(key, value)
            kv.pull(key)
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("update_on", ["every_rank", "sharded"])
@pytest.mark.parametrize("updater", ["none", "sgd", "function"])
def test_a_key_costs_the_same_however_many_there_are(updater: str, update_on: str) -> None:
    with ncclkv.create("local", update_on=update_on) as kv:
        if updater == "sgd":
            kv.set_optimizer(SGD(learning_rate=0.1, momentum=0.9))
        elif updater == "function":
            kv.set_updater(lambda key, gradient, stored: None)
        calls_to_add(kv, range(40))
        early = calls_to_add(kv, range(40, 50))
        calls_to_add(kv, range(50, 600))
        # A bisection has more steps among more addresses.
        assert calls_to_add(kv, range(600, 610)) <= early + 10


def test_views_are_found_among_the_memory_of_keys_added_one_by_one() -> None:
    with ncclkv.create("local") as kv:
        for key in range(30):
            kv.init(key, np.full(4, float(key)))
            kv.grad_view(key)[...] = 100.0 + key
        found = context_of(kv).engine.layout.bucket_of
        for key in range(30):
            for view, is_value in ((kv.grad_view(key), False), (kv.value(key), True)):
                held = found(view)
                assert held is not None
                assert [entry.key for entry in held[0].bucket.entries] == [key]
                assert held[1] is is_value
        assert found(np.ones(4)) is None
