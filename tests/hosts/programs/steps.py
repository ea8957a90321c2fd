"""Steps of training with exact sums, in which one rank fails or the network does.

``python steps.py WAY RANK STEPS``: the way of failing, the rank that fails in step `BEGIN`, and the
number of steps.  The rank touches the file MARK before it fails.  With the way ``none`` it does
nothing else.  With ``catch`` all ranks catch what they raise, and exit with code 5.  With
``kill-unseen`` the rank is killed while the others are outside of the store, and with
``kill-closed`` once it has closed the store.  Each rank writes one line to the file MARK.RANK,
which a cut network does not hold back: what it raises, or that its sums were exact.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ncclkv

WAY, LOST, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BEGIN = 5
SIZES = {"w": 3, "large": 20_000}
GRACE = float(os.environ["GRACE"])
"""Seconds between a rank's error and its exit, in which the others raise, too."""


def fail(kv: Any) -> None:
    raise ValueError("told to fail")


def leave(kv: Any) -> None:
    sys.exit(3)


def kill(kv: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(kv: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def differ(kv: Any) -> None:
    kv.pull("large")


def nothing(kv: Any) -> None:
    pass


WAYS = {
    "raise": fail,
    "exit": leave,
    "kill": kill,
    "stop": stop,
    "order": differ,
    "none": nothing,
    "catch": nothing,
    "kill-unseen": kill,
    "kill-closed": nothing,
}


def train(kv: Any) -> None:
    ranks = sum(range(1, kv.num_workers + 1))
    kv.init(list(SIZES), [np.zeros(size) for size in SIZES.values()])
    for step in range(STEPS):
        if step == BEGIN and kv.rank == LOST:
            Path(os.environ["MARK"]).touch()
            WAYS[WAY](kv)
        if step == BEGIN and WAY == "kill-unseen":
            time.sleep(0.5)
        kv.push(
            list(SIZES), [np.full(size, (kv.rank + 1) * (step + 1.0)) for size in SIZES.values()]
        )
        for key, pulled in zip(SIZES, kv.pull(list(SIZES)), strict=True):
            assert pulled.shape == (SIZES[key],)
            assert (pulled == ranks * (step + 1.0)).all(), f"{key} is wrong in step {step}"


def tell(kv: Any, words: str) -> None:
    Path(f"{os.environ['MARK']}.{kv.rank}").write_text(f"{socket.gethostname()}: {words}")


def main() -> int:
    with ncclkv.create("dist_sync") as kv:
        try:
            train(kv)
        except Exception as error:
            tell(kv, f"{type(error).__name__}: {error}")
            if WAY == "catch":
                return 5
            time.sleep(GRACE)
            raise
        tell(kv, f"summed exactly in {STEPS} steps")
    if WAY == "kill-closed" and kv.rank == LOST:
        kill(kv)
    return 0


sys.exit(main())
