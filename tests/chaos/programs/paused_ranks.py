"""A valid program with several stores, whose ranks are paused at random.

``python paused_ranks.py SECONDS``: a child stops and continues its rank, as a busy or suspended
machine does.  Rank 0 prints the count of steps.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time

import numpy as np

import ncclkv

SECONDS = float(sys.argv[1])
PAUSES = (0.3, 0.5, 0.8, 1.3, 2.0)
STORES = 3


def pause_parent(parent: int, end: int) -> None:
    """Stop and continue the parent at random, until it has closed the pipe `end`, or ended.

    A stopped parent is always continued: it does not kill this process.
    """
    pauses = random.Random(parent)
    while not select.select([end], [], [], pauses.uniform(0, 0.6))[0]:
        os.kill(parent, signal.SIGSTOP)
        time.sleep(pauses.choice(PAUSES))
        os.kill(parent, signal.SIGCONT)


def main() -> None:
    clock = ncclkv.create("dist_sync", timeout=120)
    stores = [ncclkv.create("dist_sync", timeout=120) for _ in range(STORES)]
    for store in stores:
        store.init("w", np.zeros(300))
    read_end, write_end = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        try:
            os.close(write_end)
            pause_parent(parent, read_end)
        finally:
            os._exit(0)
    try:
        order, begin, steps = random.Random(7), time.monotonic(), 0
        while not clock.allreduce(float(time.monotonic() - begin > SECONDS), "max"):
            for _ in range(STORES):
                store = order.choice(stores)
                store.push("w", np.ones(300))
                store.pull("w")
            steps += 1
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
    if clock.rank == 0:
        print(f"{steps} steps")


main()
