"""Two stores used in turn in one loop, against a model in NumPy; ``python two_stores.py HOW``.

HOW is ``plain``, or ``captured``: the first store's step is then a graph.
"""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np

import ncclkv

STEPS = 8
SIZES = [9, 40_000]
RATE = 0.5


def store(update_on: str, bucket_bytes: int, begin: float) -> ncclkv.KVStore:
    kv = ncclkv.create("nccl", update_on=update_on, bucket_bytes=bucket_bytes, timeout=60)
    kv.init([0, 1], [np.full(size, begin, np.float32) for size in SIZES])
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=RATE))
    return kv


def arrays() -> list[Any]:
    return [cupy.zeros(size, np.float32) for size in SIZES]


def equal(outs: list[Any], value: float, which: tuple[Any, ...]) -> None:
    for out in outs:
        assert (out == value).all(), (which, value, out)


def main(how: str) -> None:
    first, second = store("every_rank", 2**20, 1.0), store("root", 0, 100.0)
    rank, size = first.rank, first.num_workers
    gradients, outs, others, pulled = arrays(), arrays(), arrays(), arrays()
    first.pushpull([0, 1], gradients, out=outs)  # gradients of zero
    replay = None
    if how == "captured":
        with first.capture() as step:
            first.pushpull([0, 1], gradients, out=outs)
        replay = step.replay
    mine, other = 1.0, 100.0
    for index in range(STEPS):
        for gradient, value in zip(gradients + others, [rank + index] * 4, strict=True):
            gradient.fill(value)
        total = size * index + size * (size - 1) / 2
        if replay is not None:
            second.push([0, 1], others)
            replay()
            second.pull([0, 1], out=pulled)
        elif index % 2:
            first.push([0, 1], gradients)
            second.push([0, 1], others)
            second.pull([0, 1], out=pulled)
            first.pull([0, 1], out=outs)
        else:
            second.push([1, 0], others[::-1])
            first.pushpull([0, 1], gradients, out=outs)
            second.pull([0, 1], out=pulled)
        mine, other = mine - RATE * total, other - RATE * total
        equal(outs, mine, (index, "first"))
        equal(pulled, other, (index, "second"))
    second.close()
    first.close()
    print(f"rank {rank} | {how} | {STEPS} steps", flush=True)


main(sys.argv[1])
