"""A device with little memory on one rank: a store is made, then given a key that is too large.

``python little_memory.py RANK MIB`` names the rank. Each rank prints the result of the creation and
of the two inits, the seconds, and the store's next sum.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

# before the emulated runtime starts, which reads the variable once
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == sys.argv[1]:
    os.environ["EMULATED_MEMORY"] = sys.argv[2]

import numpy as np

import ncclkv

LARGE = np.ones(4 * 2**20, np.float32)
SMALL = np.ones(1000, np.float32)


def say(rank: int, what: str, call: Callable[[], Any]) -> Any:
    """Make a call, print its outcome, and return its result."""
    made, outcome, begin = None, "passed", time.monotonic()
    try:
        made = call()
    except ncclkv.KVStoreError as error:
        outcome = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"rank {rank} | {what} | {time.monotonic() - begin:.2f} | {outcome}", flush=True)
    return made


def main() -> None:
    with ncclkv.create("dist_sync") as world:
        rank = world.rank
        world.barrier()
        kv = say(rank, "create", lambda: ncclkv.create("nccl", timeout=8))
        world.barrier()
        if kv is None:
            return
        say(rank, "init", lambda: kv.init(["large", "small"], [LARGE, SMALL]))
        say(rank, "init again", lambda: kv.init("small", SMALL))
        kv.push("small", SMALL)
        print(f"rank {rank} | sum | 0 | {kv.pull('small').get().max():g}", flush=True)
        kv.close()


main()
