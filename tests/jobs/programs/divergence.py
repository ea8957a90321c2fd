"""A training loop in which rank 2's copy of a value is overwritten.

``python divergence.py UPDATE_ON UPDATER REPAIR``: the updater is ``sgd``, ``function`` or ``none``.
The ranks with the overwritten copy touch the file that MARK names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import ncclkv

UPDATE_ON, UPDATER, REPAIR = sys.argv[1], sys.argv[2], sys.argv[3] == "repair"
STEPS, SPOILT, EVERY = 20, 11, 5


def step(key: object, total: np.ndarray, stored: np.ndarray) -> None:
    """Make an SGD step with a learning rate of 1."""
    stored -= total


def main() -> None:
    kv = ncclkv.create("dist_sync", update_on=UPDATE_ON, verify_every=EVERY, repair=REPAIR)
    kv.init(["w", "b"], [np.zeros(20_000), np.zeros(10)])
    if UPDATER == "sgd":
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    elif UPDATER == "function":
        kv.set_updater(step)
    out = np.zeros(20_000)
    for index in range(STEPS):
        if index == SPOILT and kv.rank == 2:
            kv._context.engine.layout["b"].weight[3] += 1e-9
            Path(os.environ["MARK"]).touch()
        kv.push("w", np.ones(20_000))
        kv.pull(["w", "b"], out=[out, np.zeros(10)])
    # One write, because the lines of two ranks may be mixed.
    sys.stdout.write(f"rank {kv.rank}: {out[0]:g}, {kv.pull('b').sum():g}, {kv.repaired}\n")
    kv.close()


main()
