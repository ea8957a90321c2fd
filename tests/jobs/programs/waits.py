"""Rank 1 sleeps and rank 2 is stopped, until SIGTERM; the others wait for them in a barrier."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

import ncclkv

with ncclkv.create("dist") as closed:
    closed.init("first", np.zeros(3))
kv = ncclkv.create("dist")
kv.init("w", np.zeros(3))
kv.push("w", np.ones(3))
kv.pull("w")
if kv.rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
if kv.rank == 1:
    time.sleep(1.0)
    Path(os.environ["MARK"]).touch()
    time.sleep(300.0)
kv.barrier()
