"""A small training loop in which one or several ranks are lost.

``python lost_ranks.py PLACE WAY RANKS``: where, how and which ranks (such as ``0,2``) are lost.  A
lost rank first touches the file that MARK names.  The other ranks print their error, and raise it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ncclkv

PLACE, WAY, RANKS = sys.argv[1], sys.argv[2], [int(rank) for rank in sys.argv[3].split(",")]

# The launcher's variable, since no store exists yet.
RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))

# Elements of the key in the sums during which a rank is lost: a hundred sums take a second.
SIZE = 1_000_000
STEPS = 5
GRACE = 1.2
BEGUN = threading.Event()


def lost(place: str) -> None:
    """End this rank as the command line asks, if it is the rank and the place."""
    if place == PLACE and RANK in RANKS:
        Path(os.environ["MARK"]).touch()
        WAYS[WAY]()


def fail() -> None:
    raise ValueError(f"told to fail {PLACE}")


def forked(end: Callable[[], Any]) -> Callable[[], None]:
    """End a forked child, and continue."""

    def body() -> None:
        child = os.fork()
        if child == 0:
            end()
        os.waitpid(child, 0)

    return body


ENDS = {
    "exit": lambda: sys.exit(3),
    "os-exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}
WAYS = {"raise": fail, **ENDS, **{f"fork-{name}": forked(end) for name, end in ENDS.items()}}


def step(kv: Any, key: str, size: int) -> None:
    kv.push(key, np.ones(size))
    kv.pull(key)


def late() -> None:
    """End this rank while its main thread is in a collective."""
    BEGUN.wait()
    time.sleep(0.05)
    lost("during")


def updater(key: str, total: np.ndarray, stored: np.ndarray) -> None:
    lost("updater")
    stored += total


def train() -> None:
    kv = ncclkv.create("dist_sync")
    lost("after-create")
    kv.init(["w", "large"], [np.zeros(1000), np.zeros(SIZE if PLACE == "during" else 1)])
    if PLACE == "updater":
        kv.set_updater(updater)
    step(kv, "w", 1000)
    if PLACE == "during":
        threading.Thread(target=late, daemon=True).start()
        for _ in range(100):
            step(kv, "large", SIZE)
            BEGUN.set()
    lost("before")
    step(kv, "w", 1000)
    lost("after")
    time.sleep(0.2 if PLACE == "after" else 0)
    for _ in range(STEPS):
        step(kv, "w", 1000)
    lost("at-the-end")
    sys.stdout.write(f"rank {RANK} ends well\n")


def main() -> None:
    lost("before-create")
    try:
        train()
    except ncclkv.errors.KVStoreError as error:
        # One write, because the lines of two ranks may be mixed.
        sys.stdout.write(f"rank {RANK} raises {type(error).__name__}: {error}\n")
        sys.stdout.flush()
        # The first rank to raise ends the job; others may still be requesting the reason.
        time.sleep(GRACE)
        raise


main()
