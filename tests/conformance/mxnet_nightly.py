"""MXNet's nightly tests of its stores over several workers and devices, in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conformance.expect import full, pulled, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores

SMALL = (2, 3)
BIG = (1200, 1200)
ODD = (1211, 1211)
RATE = 2


def add_twice(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
    stored += RATE * grad


def expected_after(kv: Any, round_: int, values: int = 1) -> int:
    """Return ones plus twice the sum over ranks of `values` times rank + 1, summed over rounds."""
    return values * kv.num_workers * (kv.num_workers + 1) * (round_ + 1) + 1


def check_pushes_of_rank(create: Stores, keys: dict[str, NDArray[Any]], values: int) -> None:
    kv = create()
    kv.init(list(keys), list(keys.values()))
    kv.set_updater(add_twice)
    for i in range(3):
        for key, one in keys.items():
            kv.push(key, [one * (kv.rank + 1) for _ in range(values)])
            same(pulled(kv, key, one), expected_after(kv, i, values))


@case()
def dist_sync_small_in_two_precisions(create: Stores) -> None:
    keys = {"3": full(1, SMALL), "4": full(1, SMALL, np.float16), "5": full(1, SMALL)}
    check_pushes_of_rank(create, keys, values=1)


@case()
def dist_sync_big_and_odd(create: Stores) -> None:
    keys = {"99": full(1, BIG), "98": full(1, BIG, np.float16), "100": full(1, ODD)}
    check_pushes_of_rank(create, keys, values=1)


@case()
def dist_device_sync_two_values_a_rank(create: Stores) -> None:
    check_pushes_of_rank(create, {"3": full(1, SMALL), "99": full(1, (300, 401))}, values=2)


@case()
def dist_device_sync_pushpull(create: Stores) -> None:
    kv = create()
    kv.init("3", full(1, SMALL))
    kv.set_updater(add_twice)
    for i in range(3):
        outs = [full(0, SMALL), full(0, SMALL)]
        kv.pushpull("3", [full(kv.rank + 1, SMALL)] * 2, out=outs)
        for out in outs:
            same(out, expected_after(kv, i, values=2))


@case()
def dist_sync_many_pushes_and_one_pull(create: Stores) -> None:
    kv = create()
    kv.init("3", full(1, SMALL))
    kv.set_updater(add_twice)
    for _ in range(5):
        kv.push("3", full(kv.rank + 1, SMALL))
    same(pulled(kv, "3"), expected_after(kv, 4))


@case()
def init_of_400_keys_in_two_precisions(create: Stores) -> None:
    kv = create()
    # MXNet's large shapes are (1200, 1200): 200 of them a rank would mostly test the memory.
    shapes = [SMALL] * 200 + [(60, 70)] * 200
    values = [
        full(i, shape, np.float32 if i % 200 < 100 else np.float16)
        for i, shape in enumerate(shapes)
    ]
    for i, value in enumerate(values):
        kv.init(str(i), value)
    outs = [np.zeros_like(value) for value in values]
    kv.pull([str(i) for i in range(400)], out=outs)
    for i, out in enumerate(outs):
        same(out, i)


@case()
def custom_broadcast_of_numbers(create: Stores) -> None:
    kv = create()
    for i in range(20):
        out = full(-1, SMALL)
        # Values differ by rank; all ranks get rank 0's.
        kv.broadcast(str(i), full(i + 1000 * kv.rank, SMALL), out)
        same(out, i)


@case()
def custom_pushpull_in_place_does_not_accumulate(create: Stores) -> None:
    kv = create()
    keys = {"3": SMALL, "99": (300, 401)}
    kv.broadcast(
        list(keys), [full(1, s) for s in keys.values()], [full(0, s) for s in keys.values()]
    )
    for _ in range(3):
        for key, shape in keys.items():
            values = [full(kv.rank + 1, shape), full(kv.rank + 1, shape)]
            kv.pushpull(key, values)
            for value in values:
                same(value, kv.num_workers * (kv.num_workers + 1))


@case()
def nccl_shapes_and_numbers_of_values(create: Stores) -> None:
    shapes = [(10,), (100,), (1000,), (10000,), (2, 2), (2, 3, 4, 5, 6)]
    for values in (1, 2, 5, 8):
        kv = create()
        for key, shape in enumerate(shapes):
            kv.init(key, full(0, shape))
        for key, shape in enumerate(shapes):
            kv.push(key, [full(1, shape) for _ in range(values)])
            outs = [full(-1, shape) for _ in range(values)]
            kv.pull(key, out=outs)
            for out in outs:
                same(out, values * kv.num_workers)


@case()
def random_gradients_of_four_devices(create: Stores) -> None:
    kv = create()
    rate, keys = 0.1, {3: (4, 4), 5: (100, 100), 7: (300, 301)}

    def step(key: int, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        stored += rate * grad

    kv.init(list(keys), [full(0, shape) for shape in keys.values()])
    kv.set_updater(step)
    expected = {key: np.zeros(shape) for key, shape in keys.items()}
    draws = [np.random.default_rng(rank) for rank in range(kv.num_workers)]
    for _ in range(10):
        for key, shape in keys.items():
            grads = [
                [draw.uniform(-1, 1, shape).astype(np.float32) for _ in range(4)] for draw in draws
            ]
            kv.push(key, grads[kv.rank])
            expected[key] += rate * np.sum([np.sum(g, axis=0, dtype=float) for g in grads], axis=0)
    for key, want in expected.items():
        got = pulled(kv, key, full(0, keys[key]))
        assert np.abs(got - want).sum() / np.abs(want).sum() < 1e-6
