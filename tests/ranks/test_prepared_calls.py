"""Repeated calls of lists in any order: found prepared, and right on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.store.transfers import Transfers

NAMES = [f"layer{number}.{part}" for number in range(10) for part in ("weight", "bias")]

ORDERS = {
    "as initialised": NAMES,
    "reversed": NAMES[::-1],
    "two swapped": [NAMES[1], NAMES[0], *NAMES[2:]],
    "sorted": sorted(NAMES, key=lambda name: name.swapcase()[::-1]),
    "groups": [*NAMES[::2], *NAMES[1::2]],
    "every second": NAMES[::2],
    "every second, reversed": NAMES[::-2],
}

STEPS = 4

pytestmark = pytest.mark.limit(60)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each check of a call."""
    found: list[str] = []
    for name in ("_new_push", "_new_pull", "_keep_pull"):
        method = getattr(Transfers, name)

        def counting(
            self: Transfers, *args: Any, name: str = name, method: Any = method, **options: Any
        ) -> Any:
            found.append(name)
            return method(self, *args, **options)

        monkeypatch.setattr(Transfers, name, counting)
    return found


def number_of(name: str) -> int:
    return NAMES.index(name) + 1


def shape_of(name: str) -> tuple[int, ...]:
    """Return a shape that the key shares with no other."""
    return (number_of(name), 3) if name.endswith("weight") else (number_of(name),)


@pytest.mark.parametrize("verb", ["push and pull", "pushpull", "group"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("optimizer", [False, True], ids=["assign", "sgd"])
def test_a_repeated_list_is_checked_once(
    order: str, verb: str, optimizer: bool, checked: list[str]
) -> None:
    keys = ORDERS[order]
    values = [np.zeros(shape_of(key), np.float32) for key in keys]
    outs = [np.zeros(shape_of(key), np.float32) for key in keys]
    with ncclkv.create("dist_sync") as kv:
        kv.init(NAMES, [np.zeros(shape_of(key), np.float32) for key in NAMES])
        if optimizer:
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
        total = 0
        for step in range(STEPS):
            for key, value in zip(keys, values, strict=True):
                value[...] = number_of(key) * (step + 1) * (kv.rank + 1)
            checks = len(checked)
            make(kv, verb, keys, values, outs)
            if step:
                assert checked[checks:] == [], step
            ranks = kv.num_workers * (kv.num_workers + 1) // 2
            total = total - ranks * (step + 1) if optimizer else ranks * (step + 1)
            for key, out in zip(keys, outs, strict=True):
                np.testing.assert_array_equal(out, number_of(key) * total, key)


def make(kv: Any, verb: str, keys: list[str], values: list[Any], outs: list[Any]) -> None:
    """Push values and pull the sums."""
    if verb == "pushpull":
        kv.pushpull(keys, values, outs)
        return
    if verb == "group":
        with kv.group():
            kv.push(keys, values)
            kv.pull(keys, outs)
        return
    kv.push(keys, values)
    kv.pull(keys, outs)


def test_an_array_that_stands_for_several_keys_gets_the_last_in_the_order_of_updates() -> None:
    first, second, third = NAMES[0], NAMES[2], NAMES[4]
    shared, other = np.zeros(4, np.float32), np.zeros(4, np.float32)
    keys = [third, first, second]
    with ncclkv.create("dist_sync") as kv:
        kv.init(NAMES[:6], [np.full(4, number_of(key), np.float32) for key in NAMES[:6]])
        kv.value(first)
        for _ in range(3):
            shared[:] = other[:] = 0
            kv.pull(keys, [other, shared, shared])
            assert (other == number_of(third)).all()
            assert (shared == number_of(second)).all()
            kv.pull(keys[::-1], [other, shared, other])
            assert (shared == number_of(first)).all()
            assert (other == number_of(third)).all()


def test_other_arrays_in_the_same_order_are_checked(checked: list[str]) -> None:
    keys = NAMES[::-1]
    with ncclkv.create("dist_sync") as kv:
        kv.init(NAMES, [np.full(4, number_of(key), np.float32) for key in NAMES])
        kv.value(keys[0])  # gives all keys their buckets: the pulls are kept from now on
        for _ in range(2):
            outs = [np.zeros(4, np.float32) for _ in keys]
            for turn in (outs, outs, outs[::-1], outs[::-1]):
                kv.pull(keys, turn)
                for key, out in zip(keys, turn, strict=True):
                    assert (out == number_of(key)).all()
        assert checked.count("_new_pull") == 4


class Launches(Instrument):
    """Records the label and the bytes of each launch."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []

    def launched(self, launch: Launch) -> None:
        self.made.append((launch.label, launch.nbytes))


@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
def test_many_keys_between_others_are_reduced_by_one_collective(update_on: str) -> None:
    keys = list(range(300))
    counts = [20_000 if key == 151 else 5 for key in keys]
    log = Launches()
    with ncclkv.create("dist_sync", update_on=update_on) as kv:
        kv.init(keys, [np.zeros(count, np.float32) for count in counts])
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
        kv.value(0)
        kv.add_instrument(log)
        picked, few = keys[1::2], keys[:14:2]
        for step in range(3):
            del log.made[:]
            kv.push(picked, [np.full(counts[key], key, np.float32) for key in picked])
            values = kv.pull(picked)
            sums = [made for made in log.made if "more ranges" in made[0]]
            assert sums == [("key 1 and 148 more ranges", 149 * 5 * 4)]
            published = update_on != "every_rank"
            assert len(log.made) == 2 + published, log.made
            for key, value in zip(picked, values, strict=True):
                np.testing.assert_array_equal(value, -key * (step + 1) * kv.num_workers)
        del log.made[:]
        kv.push(few, [np.ones(5, np.float32) for _ in few])
        kv.wait()
        assert [label for label, _ in log.made if "key" in label][:7] == [f"key {k}" for k in few]
