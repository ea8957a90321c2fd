"""Pushes of keys that are not neighbours: many short ranges of a bucket are reduced as one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.optimizer import SGD
from tests.conformance.expect import full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

LONG = 10_000
"""Elements of a key that is too long to be gathered."""

SHAPES = [(3,), (), (2, 5), (0,), (64,), (1,), (7, 11)]
COUNT = 60
PICKED = {
    "every second": slice(0, None, 2),
    "odd": slice(1, None, 2),
    "every third": slice(None, None, -3),
}


def shape_of(key: int) -> tuple[int, ...]:
    return (LONG,) if key in (20, 31) else SHAPES[key % len(SHAPES)]


def made(create: Stores, dtype: Any = np.float32, op: str = "sum", **options: Any) -> Any:
    """Return a store whose key k has k everywhere."""
    kv = create(**options)
    keys = list(range(COUNT))
    kv.init(keys, [full(key % 8, shape_of(key), dtype) for key in keys], op=op)
    return kv


def check(kv: Any, wanted: list[float], dtype: Any = np.float32) -> None:
    """Fail unless each key has its number everywhere."""
    for key, number in enumerate(wanted):
        shape = shape_of(key)
        same(pulled(kv, key, full(0, shape, dtype)), full(number, shape, dtype))


@case()
def keys_between_others_are_replaced(create: Stores) -> None:
    for dtype in (np.float32, np.float16):
        kv = made(create, dtype)
        wanted = [key % 8 for key in range(COUNT)]
        for step in range(1, 4):
            for picked in PICKED.values():
                keys = list(range(COUNT))[picked]
                given = [
                    full((key % 5 + step) * (kv.rank + 1), shape_of(key), dtype) for key in keys
                ]
                outs = [full(-1, shape_of(key), dtype) for key in keys]
                kv.push(keys, given)
                kv.pull(keys, outs)
                for key, out in zip(keys, outs, strict=True):
                    wanted[key] = (key % 5 + step) * total(kv)
                    same(out, full(wanted[key], shape_of(key), dtype))
            check(kv, wanted, dtype)


@case()
def keys_between_others_are_averaged_and_compared(create: Stores) -> None:
    for op in ("avg", "max", "min"):
        kv = made(create, op=op)
        wanted: list[float] = [key % 8 for key in range(COUNT)]
        keys = list(range(COUNT))[::2]
        kv.push(keys, [full(2 * (key + kv.rank), shape_of(key)) for key in keys])
        size = kv.num_workers
        extra = {"avg": size - 1, "max": 2 * (size - 1), "min": 0}[op]
        for key in keys:
            wanted[key] = 2 * key + extra
        check(kv, wanted)


@case()
def keys_between_others_are_updated(create: Stores) -> None:
    kv = made(create)
    kv.set_optimizer(SGD(learning_rate=0.5, momentum=0.5))
    wanted: list[float] = [key % 8 for key in range(COUNT)]
    speeds = [0.0] * COUNT
    for picked in (*PICKED.values(), *PICKED.values()):
        keys = list(range(COUNT))[picked]
        kv.pushpull(keys, [full(2 * (kv.rank + 1), shape_of(key)) for key in keys])
        for key in keys:
            speeds[key] = 0.5 * speeds[key] - 0.5 * 2 * total(kv)
            wanted[key] += speeds[key]
        check(kv, wanted)


@case()
def keys_between_others_are_given_to_a_function(create: Stores) -> None:
    kv = made(create)
    seen: list[int] = []

    def update(key: int, given: Any, stored: Any) -> None:
        seen.append(key)
        stored += given

    wanted: list[float] = [key % 8 for key in range(COUNT)]
    keys = list(range(COUNT))[::2]
    for change in range(3):
        if change == 1:
            kv.set_updater(update)
        kv.push(keys, [full(kv.rank + 1, shape_of(key)) for key in keys])
        for key in keys:
            wanted[key] = wanted[key] + total(kv) if change else total(kv)
        check(kv, wanted)
    assert seen == 2 * [key for key in keys if create.updates_here(kv, key)]


@case()
def keys_between_others_with_lent_gradients(create: Stores) -> None:
    kv = made(create)
    keys = list(range(COUNT))[::2]
    between = kv.grad_view(1)
    between[...] = 10 * (kv.rank + 1)
    kv.push(keys, [full(kv.rank + 1, shape_of(key)) for key in keys])
    kv.pull(keys)
    same(between, 10 * (kv.rank + 1))
    kv.push(1, between)
    wanted: list[float] = [key % 8 for key in range(COUNT)]
    for key in keys:
        wanted[key] = total(kv)
    wanted[1] = 10 * total(kv)
    check(kv, wanted)


@case()
def keys_between_others_that_some_ranks_miss(create: Stores) -> None:
    kv = made(create, missing="zeros", op="avg")
    keys = [key for key in range(0, COUNT, 2) if key % 3 or kv.rank == 0]
    kv.push(keys, [full(kv.num_workers, shape_of(key)) for key in keys])
    wanted: list[float] = [key % 8 for key in range(COUNT)]
    for key in range(0, COUNT, 2):
        wanted[key] = kv.num_workers if key % 3 else 1
    check(kv, wanted)
