"""Arrays of hosts and of devices in one call, against a model in NumPy; ``python mixed.py``.

Each rank draws which of its arrays are on its device. All numbers are exact in float32.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

import ncclkv

Array = NDArray[Any]

SHAPES = {"small": (7,), "scalar": (), "matrix": (30, 40), "empty": (0, 3), "long": (70_000,)}
KEYS = list(SHAPES)
STEPS = 6
RATE, MOMENTUM = 0.5, 0.5


class Model:
    """The values that a store must hold after each push."""

    def __init__(self, optimizer: bool) -> None:
        self.optimizer = optimizer
        self.values = {key: np.ones(shape) for key, shape in SHAPES.items()}
        self.momenta = {key: np.zeros(shape) for key, shape in SHAPES.items()}

    def push(self, sums: dict[str, Array]) -> None:
        for key, total in sums.items():
            if self.optimizer:
                self.momenta[key] = MOMENTUM * self.momenta[key] - RATE * total
                self.values[key] = self.values[key] + self.momenta[key]
            else:
                self.values[key] = total


def gradients(step: int, rank: int) -> dict[str, list[Array]]:
    """Return a rank's arrays of a step, up to three for each key."""
    rng = np.random.default_rng([step, rank])
    return {
        key: [np.asarray(rng.integers(-4, 5, shape), np.float32) for _ in range(rng.integers(1, 4))]
        for key, shape in SHAPES.items()
    }


def somewhere(rng: np.random.Generator, array: Array) -> Any:
    """Return an array of the host or of the device, whole or as a part of a larger one."""
    made = cupy if rng.random() < 0.5 else np
    if array.ndim and rng.random() < 0.3:
        larger = made.zeros((*array.shape[:-1], 2 * array.shape[-1]), np.float32)
        larger[..., ::2] = made.asarray(array)
        return larger[..., ::2]
    return made.asarray(array).copy()


def on_host(array: Any) -> Array:
    return array if isinstance(array, np.ndarray) else cupy.asnumpy(array)


def outs_of(rng: np.random.Generator) -> list[Any]:
    """Return an array for each key, and for some keys a list of several."""
    return [
        [somewhere(rng, np.full(shape, -1, np.float32)) for _ in range(rng.integers(1, 4))]
        for shape in SHAPES.values()
    ]


def run(update_on: str, optimizer: bool) -> None:
    with ncclkv.create("nccl", update_on=update_on, timeout=60) as kv:
        rng = np.random.default_rng([kv.rank, optimizer])
        model = Model(optimizer)
        kv.init(KEYS, [np.ones(shape, np.float32) for shape in SHAPES.values()])
        if optimizer:
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=RATE, momentum=MOMENTUM))
        for step in range(STEPS):
            of_ranks = [gradients(step, rank) for rank in range(kv.num_workers)]
            pushed = [[somewhere(rng, array) for array in of_ranks[kv.rank][key]] for key in KEYS]
            outs = outs_of(rng)
            if step % 2:
                kv.pushpull(KEYS, pushed, out=outs)
            else:
                kv.push(KEYS, pushed)
                kv.pull(KEYS, out=outs)
            model.push({key: sum(sum(mine[key]) for mine in of_ranks) for key in KEYS})
            for key, arrays in zip(KEYS, outs, strict=True):
                for out in arrays:
                    assert np.array_equal(on_host(out), model.values[key]), (step, key, type(out))
        print(f"rank {kv.rank} | {update_on} | {optimizer} | {STEPS} steps", flush=True)


for update_on in ("every_rank", "root"):
    for optimizer in (False, True):
        run(update_on, optimizer)
