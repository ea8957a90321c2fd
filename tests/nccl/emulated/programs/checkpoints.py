"""A run that saves or continues; ``python checkpoints.py DO STORE PLACEMENT FROM TO``.

DO is ``begin``, which saves to TO, or ``go-on``, which loads FROM and saves it to TO again. Each
rank prints digests of its values at the save and some steps later. The saving rank also prints a
digest of the values and optimizer states in the files.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

import ncclkv

SHAPES = {"matrix": (30, 41), "vector": (100_000,), "scalar": (), "empty": (0, 3)}
KEYS = list(SHAPES)
STEPS = 3


def step(kv: ncclkv.KVStore, index: int) -> None:
    """Push gradients whose sums have the same bits on any count of ranks."""
    rng = np.random.default_rng(index)
    gradients = []
    for shape in SHAPES.values():
        total = rng.integers(-99, 99, shape)
        others = [rng.integers(-9, 9, shape) for _ in range(8)][: kv.num_workers - 1]
        mine = others[kv.rank - 1] if kv.rank else total - sum(others, np.zeros(shape))
        gradients.append(np.asarray(mine / 8, np.float32))
    kv.push(KEYS, gradients)


def digest(arrays: list[NDArray[np.float32]]) -> str:
    text = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.sha256(text).hexdigest()[:16]


def values(kv: ncclkv.KVStore) -> str:
    outs = [np.empty(shape, np.float32) for shape in SHAPES.values()]
    kv.pull(KEYS, out=outs)
    return digest(outs)


def files(folder: str) -> str:
    """Return a digest of all arrays in the files of a checkpoint, with pieces in their order."""
    arrays = {}
    for path in sorted(Path(folder).rglob("*.safetensors")):
        for name, array in load_file(path).items():
            tensor, _, bounds = name.rstrip("]").partition("[")
            arrays[tensor, int(bounds.partition(":")[0] or 0)] = array
    assert len({tensor for tensor, _ in arrays}) == 2 * len(KEYS), arrays
    return digest([arrays[piece] for piece in sorted(arrays)])


def main(do: str, store: str, placement: str, source: str, target: str) -> None:
    with ncclkv.create(store, update_on=placement, timeout=60) as kv:
        rng = np.random.default_rng(7)
        if do == "begin":
            drawn = [
                np.asarray(rng.standard_normal(shape), np.float32) for shape in SHAPES.values()
            ]
            kv.init(KEYS, drawn)
            descent = ncclkv.optimizer.SGD(learning_rate=0.1, momentum=0.9, wd=0.01)
            kv.set_optimizer(descent)
            for index in range(STEPS):
                step(kv, index)
        else:
            assert kv.load(source).step == STEPS
        kv.save(target, step=STEPS)
        saved = values(kv)
        for index in range(STEPS, 2 * STEPS):
            step(kv, index)
        later = values(kv)
        kept = files(target) if kv.rank == 0 else ""
        print(f"rank {kv.rank} | {saved} | {later} | {kept}", flush=True)


main(*sys.argv[1:])
