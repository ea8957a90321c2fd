"""Steps of training in which rank 1 ends without a word: ``python dead_rank.py``."""

from __future__ import annotations

import os

import numpy as np

import ncclkv

with ncclkv.create("dist_sync") as kv:
    kv.init("w", np.zeros(500))
    for step in range(100):
        if (kv.rank, step) == (1, 5):
            os._exit(7)
        kv.push("w", np.ones(500))
        kv.pull("w")
