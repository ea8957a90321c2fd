"""Keys added one by one: the buckets that they get, and the values before and after a merge."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from ncclkv.optimizer import SGD, Adam
from ncclkv.testing import run_ranks
from tests.harness.context import context_of

UPDATERS: dict[str, Any] = {
    "none": lambda: None,
    "momentum": lambda: SGD(learning_rate=0.1, momentum=0.9),
    "adam": lambda: Adam(learning_rate=0.01),
    "masters": lambda: SGD(learning_rate=0.1, momentum=0.9, multi_precision=True),
}


def buckets(kv: Any) -> list[list[Any]]:
    """Return the keys of each bucket."""
    states = context_of(kv).engine.layout.states
    return [[entry.key for entry in state.bucket.entries] for state in states]


def gradient(kv: Any, key: int, step: int, like: Any) -> Any:
    """Return this rank's gradient, which sums over ranks exactly."""
    return np.full_like(like, (kv.rank + 1) * (key % 5 + 1) + step)


def first(key: int) -> Any:
    """Return a key's first value; dtypes and sizes differ, and some buckets share weights."""
    dtype = np.float16 if key % 7 == 3 else np.float32
    return np.full((key * 37) % 3001 + 1, key, dtype)


def add_and_use(kv: Any, seed: int) -> list[bytes]:
    """Add keys in a random order, use them one by one and together; return all values read."""
    choose, read = random.Random(seed), []
    keys: list[int] = []
    names = choose.sample(range(400), 30)
    for step in range(20):
        for key in [names.pop() for _ in range(choose.randint(0, min(4, len(names))))]:
            kv.init(key, first(key))
            keys.append(key)
            if choose.random() < 0.7:
                kv.push(key, gradient(kv, key, step, first(key)))
            if choose.random() < 0.5:
                read.append(kv.pull(key).tobytes())
        if not keys or choose.random() < 0.4:
            continue
        used = choose.sample(keys, len(keys) if choose.random() < 0.6 else len(keys) // 2 + 1)
        pushed = [gradient(kv, key, step, first(key)) for key in used]
        if choose.random() < 0.5:
            kv.push(used, pushed)
            if choose.random() < 0.8:
                read += [value.tobytes() for value in kv.pull(used)]
        else:
            outs = [np.empty_like(first(key)) for key in used]
            kv.pushpull(used, pushed, out=outs)
            read += [value.tobytes() for value in outs]
    return read + [value.tobytes() for value in kv.pull(keys)]


def store(updater: str, **options: Any) -> Any:
    """Return a store of threads."""
    kv = ncclkv.create("threads", timeout=20, reproducible=True, **options)
    if (optimizer := UPDATERS[updater]()) is not None:
        kv.set_optimizer(optimizer)
    return kv


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
@pytest.mark.parametrize("updater", UPDATERS)
def test_a_merge_changes_no_value(updater: str, update_on: str, size: int) -> None:
    for seed in range(2):

        def body(seed: int = seed) -> tuple[list[bytes], list[bytes], int, int]:
            # A bucket of each key is never merged: the same calls give the values to expect.
            with store(updater, update_on=update_on, bucket_bytes=0) as kv:
                expected, apart = add_and_use(kv, seed), len(buckets(kv))
            with store(updater, update_on=update_on) as kv:
                return add_and_use(kv, seed), expected, len(buckets(kv)), apart

        for found, expected, merged, apart in run_ranks(size, body, timeout=60):
            assert found == expected
            if updater == "none" or update_on != "sharded":
                assert merged < apart / 3


@pytest.mark.parametrize("updater", UPDATERS)
@pytest.mark.parametrize("size", [1, 2])
def test_a_push_of_all_keys_merges_their_buckets(updater: str, size: int) -> None:
    keys = list(range(50))
    values = [np.zeros(4, np.float32)] * 50

    def body() -> tuple[int, list[list[Any]], list[list[Any]]]:
        with store(updater) as kv:
            for key in keys:
                kv.init(key, values[key])
                kv.push(key, values[key])
            alone = len(buckets(kv))
            kv.push(keys, values)
            merged = buckets(kv)
            kv.init(50, values[0])
            kv.push(keys, values)  # not all keys: their number is another
            kv.push([*keys, 50], [*values, values[0]])
            return alone, merged, buckets(kv)

    for alone, merged, with_later in run_ranks(size, body, timeout=20):
        assert alone == 50
        assert merged == [keys]
        assert with_later == [[*keys, 50]]


def test_a_bucket_stays_in_place_when_any_rank_has_a_view_of_it() -> None:
    ones = np.ones(4, np.float32)

    def body() -> tuple[list[list[Any]], float, float]:
        with store("momentum") as kv:
            for key in range(6):
                kv.init(key, ones)
                kv.push(key, ones)
            value = kv.value(2) if kv.rank == 0 else None
            lent = kv.grad_view(4) if kv.rank == 1 else None
            kv.push(list(range(6)), [ones] * 6)
            kv.wait()
            if lent is not None:
                lent[...] = 5.0
            kv.push(4, ones if lent is None else lent)
            pulled = float(kv.pull(2)[0])
            seen = pulled if value is None else float(value[0])
            return buckets(kv), seen, float(kv.pull(4)[0])

    (layout, seen, pulled), (other, pulled_there, pulled_4) = run_ranks(2, body, timeout=20)
    assert layout == other == [[2], [4], [0, 1, 3, 5]]
    assert (seen, pulled) == (pulled_there, pulled_4)


def test_a_merge_keeps_what_checkpoints_hold(tmp_path: Any) -> None:
    keys = list(range(12))
    path = str(tmp_path / "saved")
    ones = [np.ones(5, np.float32)] * 12

    def body() -> tuple[list[bytes], list[bytes]]:
        with store("adam") as kv:
            for key in keys:
                kv.init(key, ones[key])
                for _ in range(key % 3):
                    kv.push(key, ones[key])
            kv.push(keys, ones)
            assert len(buckets(kv)) == 1
            kv.save(path)
            kv.push(keys, ones)
            went_on = [value.tobytes() for value in kv.pull(keys)]
        with store("adam", bucket_bytes=0) as kv:
            kv.init(keys, ones)
            kv.load(path)
            kv.push(keys, ones)
            return went_on, [value.tobytes() for value in kv.pull(keys)]

    for went_on, resumed in run_ranks(2, body, timeout=20):
        assert went_on == resumed


def test_a_list_that_is_no_list_of_all_keys_is_refused_as_before() -> None:
    with store("none") as kv:
        for key in range(3):
            kv.init(key, np.ones(2))
            kv.push(key, np.ones(2))
        for wrong in ([0, 1, []], [0, 1, "2"], [0, 1, 7]):
            with pytest.raises(UsageError):
                kv.push(wrong, [np.ones(2)] * 3)
        assert len(buckets(kv)) == 3
        kv.push((0, 1, 2), [np.ones(2)] * 3)
        assert buckets(kv) == [[0, 1, 2]]


@pytest.mark.parametrize("size", [1, 2])
def test_waits_and_blocks_of_earlier_keys_follow_a_merge(size: int) -> None:
    keys, ones = [0, 1, 2], [np.ones(4, np.float32)] * 3

    def body() -> list[tuple[float, int]]:
        seen = []
        with store("none") as kv:
            for key in keys:
                kv.init(key, ones[key])
                kv.push(key, ones[key])
                kv.wait(key)
            for step in range(1, 5):  # the second step merges
                values = [step * one for one in ones]
                with kv.overlap(keys):
                    for key in keys:
                        kv.push(key, values[key])
                kv.wait(keys)
                if step > 1:
                    kv.push(keys, values)
                kv.push(0, 10 * values[0])
                kv.wait(0)
                seen.append((float(kv.pull(0, local=True)[0]) / step, len(buckets(kv))))
        return seen

    for seen in run_ranks(size, body, timeout=20):
        assert seen == [(10 * size, 3), (10 * size, 1), (10 * size, 1), (10 * size, 1)]
