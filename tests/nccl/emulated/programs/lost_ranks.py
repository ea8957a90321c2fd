"""A loop over NCCL in which rank 1 is lost; ``python lost_ranks.py WAY WAIT``.

WAY is the cause of the loss. WAIT is the wait of the others: ``wait`` of the store, ``get`` of
CuPy, or ``pull`` into memory of the host. The lost rank first touches the file that MARK names. The
others print their errors and the seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np

import ncclkv

DEADLINE = 4.0
SIZE = 20_000
LOST_IN = 5
"""The step of the loop."""

GRACE = 1.2
"""Seconds for the other ranks to raise, too, before the first of them ends the job."""


def fail() -> None:
    raise ValueError("on purpose")


WAYS = {
    "raise": fail,
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def step(kv: ncclkv.KVStore, wait: str, gradient: Any, out: Any, on_host: Any) -> None:
    """Push and pull, and wait for the end of both."""
    kv.push("w", gradient)
    kv.pull("w", out=on_host if wait == "pull" else out)
    if wait == "wait":
        kv.wait()
    elif wait == "get":
        out.get()


def main(way: str, wait: str) -> None:
    kv = ncclkv.create("nccl", timeout=DEADLINE)
    kv.init("w", np.zeros(SIZE, np.float32))
    arrays = [cupy.ones(SIZE, np.float32), cupy.empty(SIZE, np.float32), np.empty(SIZE, np.float32)]
    for _ in range(LOST_IN):
        step(kv, wait, *arrays)
    if kv.rank == 1:
        Path(os.environ["MARK"]).touch()
        WAYS[way]()
    begin = time.monotonic()
    try:
        while True:
            step(kv, wait, *arrays)
    except ncclkv.KVStoreError as error:
        seconds = time.monotonic() - begin
        text = " ".join(str(error).split())
        sys.stdout.write(f"rank {kv.rank} | {seconds:.2f} | {type(error).__name__} | {text}\n")
        sys.stdout.flush()
        time.sleep(GRACE)
        raise


main(*sys.argv[1:])
