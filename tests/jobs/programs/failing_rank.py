"""A small training loop in which some ranks fail.

``python failing_rank.py PLACE WAY RANKS``: where, how and which ranks (such as ``0,2``) fail. A
failing rank first touches the file that MARK names.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import ncclkv

PLACE, WAY, RANKS = sys.argv[1], sys.argv[2], [int(rank) for rank in sys.argv[3].split(",")]


def end(place: str, rank: int) -> None:
    """Fail as the command line asks, if the place and the rank match."""
    if place != PLACE or rank not in RANKS:
        return
    Path(os.environ["MARK"]).touch()
    # One write, because the lines of two ranks may be mixed.
    sys.stdout.write(f"rank {rank} got as far as {place}\n")
    if WAY == "interrupt":
        signal.raise_signal(signal.SIGINT)
    elif WAY == "raise":
        raise ValueError(f"told to fail {place}")
    else:
        sys.exit(int(WAY))


def train(kv: ncclkv.KVStore) -> None:
    """Make three steps, with a failure between the first two."""
    kv.init("w", np.zeros(5000))
    if "updater" in PLACE:
        kv.set_updater(lambda key, total, stored: end(PLACE, kv.rank))
    for step in range(3):
        kv.push("w", np.ones(5000))
        kv.pull("w")
        if step == 0:
            end("between", kv.rank)


def main() -> None:
    # The launcher's variable, since no store exists yet.
    end("before", int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))))
    kv = ncclkv.create(
        "dist_sync", update_on="root" if PLACE == "updater-of-root" else "every_rank"
    )
    if PLACE == "with":
        with kv:
            kv.init("w", np.zeros(5))
            end("with", kv.rank)
            kv.push("w", np.ones(5))
            kv.pull("w")
    else:
        train(kv)
    end("at-the-end", kv.rank)


main()
