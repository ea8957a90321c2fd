"""`update_on="sharded"`: the numbers of ``every_rank``, and a part of the states on each rank.

All numbers are exact in binary, so a difference is a wrong element.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from ncclkv.engine.bucket_state import SHARED_FROM_BYTES
from tests.conformance.expect import pulled, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of

SIZES = [3, 100, 700, 0, 33, 5000]
KEYS = [*range(len(SIZES))]
LARGE = [SHARED_FROM_BYTES // 4 + 5, 130_001]
"""Sizes of float32 keys whose buckets a node shares; the second is summed without copies."""

Arrays = list[NDArray[Any]]


def integers(seed: list[int], sizes: list[int], dtype: Any = np.float32) -> Arrays:
    """Return small integers, equal on ranks that pass the same seed."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, size).astype(dtype) for size in sizes]


def momentum(**options: Any) -> optimizer.SGD:
    return optimizer.SGD(learning_rate=0.5, momentum=0.5, **options)


def steps(kv: Any, sizes: list[int], dtype: Any, count: int = 3) -> list[Arrays]:
    """Push all keys, then some of them; return what is pulled after each push."""
    keys = [*range(len(sizes))]
    found = []
    for number in range(count):
        pushed = keys if number != 1 else keys[1::2]
        gradients = integers([number, kv.rank], sizes, dtype)
        kv.push(pushed, [gradients[key] for key in pushed])
        outs = [np.empty(size, dtype) for size in sizes]
        kv.pull(keys, out=outs)
        found.append(outs)
    return found


def compare(create: Stores, sizes: list[int], dtype: Any, **options: Any) -> None:
    """Compare a sharded store with a store that updates on every rank."""
    results = []
    for update_on in ("every_rank", "sharded"):
        kv = create(update_on=update_on, **options)
        kv.init([*range(len(sizes))], integers([99], sizes, dtype))
        sgd = momentum()
        sgd.lr_mult = {1: 2.0}
        kv.set_optimizer(sgd)
        found = steps(kv, sizes, dtype)
        sgd.learning_rate = 0.25
        found += steps(kv, sizes, dtype, 1)
        kv.set_optimizer(momentum(wd=0.5))
        results.append(found + steps(kv, sizes, dtype, 1))
    for number, (one, other) in enumerate(zip(*results, strict=True)):
        for key, (expected, got) in enumerate(zip(one, other, strict=True)):
            assert expected.tobytes() == got.tobytes(), (number, key, expected, got)


@case()
def small_keys_have_the_numbers_of_every_rank(create: Stores) -> None:
    for nbytes in (0, 4096, 1 << 20):
        compare(create, SIZES, np.float32, bucket_bytes=nbytes)
    compare(create, SIZES, np.float64)
    compare(create, SIZES, np.float16)


@case()
def large_keys_have_the_numbers_of_every_rank(create: Stores) -> None:
    compare(create, LARGE, np.float32)
    compare(create, LARGE, np.float32, bucket_bytes=0)


@case()
def sums_without_an_updater_replace_the_values(create: Stores) -> None:
    kv = create(update_on="sharded")
    kv.init([*range(2)], integers([99], LARGE))
    pushed = [integers([0, rank], LARGE) for rank in range(kv.num_workers)]
    total = [np.sum(each, axis=0) for each in zip(*pushed, strict=True)]
    kv.push([0, 1], integers([0, kv.rank], LARGE))
    for key in range(2):
        same(pulled(kv, key, np.empty(LARGE[key], np.float32)), total[key])


@case()
def the_states_are_divided(create: Stores) -> None:
    sizes = [*SIZES, *LARGE]
    kv = create(update_on="sharded")
    kv.init([*range(len(sizes))], integers([99], sizes))
    kv.set_optimizer(momentum())
    kv.push(0, integers([0], sizes)[0])
    kv.wait()
    found = re.search(r"^states of SGD: ([\d,]+) bytes on this rank$", kv.explain_plan(), re.M)
    assert found, kv.explain_plan()
    own = int(found[1].replace(",", ""))
    context = context_of(kv)
    ranks = context.comm.control.allgather(own, "a test")
    buckets = [state.bucket for state in context.engine.layout.states]
    assert sum(ranks) == sum(bucket.nbytes for bucket in buckets)
    # Slices begin at multiples of 16 elements of 4 bytes.
    assert max(ranks) - min(ranks) <= 64 * len(buckets)


@case()
def a_function_runs_once_a_key(create: Stores) -> None:
    kv = create(update_on="sharded", bucket_bytes=1024)
    kv.init(KEYS, integers([99], SIZES))
    calls: list[int] = []

    def add(key: int, gradient: NDArray[Any], stored: NDArray[Any]) -> None:
        calls.append(key)
        stored += gradient

    def owned() -> list[list[int]]:
        found: list[list[int]] = context_of(kv).comm.control.allgather(list(calls), "a test")
        calls.clear()
        return found

    kv.set_updater(add)
    ones = [np.ones(size, np.float32) for size in SIZES]
    kv.push(KEYS, ones)
    before = owned()
    assert sorted(chain(*before)) == KEYS
    assert before == [sorted(each) for each in before]
    # Later keys move none of the earlier ones, whose owner may have a state of its own.
    kv.init([90, 91], [np.ones(40, np.float32), np.ones(9000, np.float32)])
    kv.push([*KEYS, 90, 91], [*ones, np.ones(40, np.float32), np.ones(9000, np.float32)])
    after = owned()
    assert [[key for key in each if key < 90] for each in after] == before
    assert sorted(chain(*after)) == [*KEYS, 90, 91]
    for key, first in zip(KEYS, integers([99], SIZES), strict=True):
        same(pulled(kv, key, np.empty(SIZES[key], np.float32)), first + 2 * kv.num_workers)


@case()
def another_rule_starts_from_the_values_of_all_owners(create: Stores) -> None:
    kv = create(update_on="sharded", bucket_bytes=4096)
    kv.init(KEYS, [np.zeros(size, np.float32) for size in SIZES])
    ones = [np.ones(size, np.float32) for size in SIZES]
    plain = optimizer.SGD(learning_rate=1.0)
    kv.set_optimizer(plain)
    kv.push(KEYS, ones)
    kv.set_updater(lambda key, gradient, stored: np.multiply(stored, 2, out=stored))
    kv.push(KEYS, ones)
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    kv.push(KEYS, ones)
    for key in KEYS:
        same(pulled(kv, key, np.empty(SIZES[key], np.float32)), -3.0 * kv.num_workers)


@case()
def partial_pushes_are_published_together(create: Stores) -> None:
    """Elements between two pushed keys are published as they are."""
    kv = create(update_on="sharded")
    kv.init(KEYS, integers([99], SIZES))
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    kv.push(1, np.ones(SIZES[1], np.float32))
    kv.push(4, np.ones(SIZES[4], np.float32))
    for key, first in zip(KEYS, integers([99], SIZES), strict=True):
        wanted = first - kv.num_workers if key in (1, 4) else first
        same(pulled(kv, key, np.empty(SIZES[key], np.float32)), wanted)
