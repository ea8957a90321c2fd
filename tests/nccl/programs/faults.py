"""Two ranks; rank 1 fails; ``python faults.py FAULT STORE``."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import ncclkv

FAULT, STORE = sys.argv[1:]
LATER = 45
"""Seconds for which rank 1 is absent; rank 0's deadline is much shorter."""


def go_wrong(kv: ncclkv.KVStore) -> None:
    """Let rank 1 fail in place of a push of key w."""
    if FAULT == "missing":
        time.sleep(LATER)
    elif FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif FAULT == "another call":
        kv.push("longer", np.ones(5000, np.float32))
        kv.wait()
    else:
        raise ValueError("on purpose")


def main() -> None:
    kv = ncclkv.create(STORE, timeout=15)
    kv.init(["w", "longer"], [np.zeros(1000, np.float32), np.zeros(5000, np.float32)])
    kv.push(["w", "longer"], [np.ones(1000, np.float32), np.ones(5000, np.float32)])
    out = np.zeros(1000, np.float32)
    kv.pull("w", out=out)
    assert (out == kv.num_workers).all()
    print(f"rank {kv.rank}: as it should be", flush=True)
    if kv.rank == 1:
        go_wrong(kv)
    kv.push("w", np.ones(1000, np.float32))
    kv.wait()


main()
