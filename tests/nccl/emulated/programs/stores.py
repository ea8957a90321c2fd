"""Stores one after another, and their leftovers; ``python stores.py HOW COUNT``.

HOW is ``plain``, ``options``, ``capture``, ``failed`` or ``dropped``. Each rank prints the live
objects after a few stores, and after all of them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from typing import Any

import cupy
import numpy as np

import ncclkv
from tests.nccl.emulated import control

WARM = 5
"""Count of stores after which CuPy, MPI and Python allocate nothing more."""

SIZE = 20_000
OF_STORES = ("streams", "events", "device_blocks", "pinned_blocks")
"""Kinds of objects of which none are left once all stores on the device are freed."""

FREED = 10.0
"""Seconds after which a store that was dropped, or that failed, is freed."""


def freed() -> dict[str, int]:
    """Free what nothing refers to, and return the count of other objects on the device."""
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    return control.counts()


def alive() -> dict[str, int]:
    """Return the count of live objects of each kind in this process.

    The watcher frees a dropped store after a while, and the thread that aborts a failed one ends
    after a while.
    """
    limit = time.monotonic() + FREED
    found = freed()
    while any(found[kind] for kind in OF_STORES) and time.monotonic() < limit:
        time.sleep(0.01)
        found = freed()
    found["python_threads"] = threading.active_count()
    found["descriptors"] = len(os.listdir("/proc/self/fd"))
    found["tasks"] = len(os.listdir("/proc/self/task"))
    return found


def one(how: str, index: int) -> None:
    """Make a store, use it, and end it as `how` names."""
    options: dict[str, Any] = {}
    if how == "options":
        options = {"nonfinite": "skip_step", "verify_every": 1, "reproducible": index % 2 == 0}
    update_on = "root" if index % 3 == 0 else "every_rank"
    kv = ncclkv.create("nccl", timeout=20, update_on=update_on, **options)
    kv.init("w", np.zeros(SIZE, np.float32))
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))
    gradient, out = cupy.ones(SIZE, np.float32), cupy.empty(SIZE, np.float32)
    for _ in range(3):
        kv.pushpull("w", gradient, out=out)
    if how == "capture":
        with kv.capture() as step:
            kv.pushpull("w", gradient, out=out)
        for _ in range(3):
            step.replay()
    if how == "failed":
        try:
            fail(kv, gradient)
        except ncclkv.KVStoreError:
            pass
        else:
            raise SystemExit("the store did not fail")
    elif how != "dropped":
        kv.wait()
        assert float(out.sum()) != 0
    if how != "dropped":
        close(kv)


def fail(kv: ncclkv.KVStore, gradient: Any) -> None:
    """Let the device of the last rank fail once."""
    if kv.rank == kv.num_workers - 1:
        control.fail("cudaEventQuery", 1, 700)
    for _ in range(3):
        kv.push("w", gradient)
        kv.wait()


def close(kv: ncclkv.KVStore) -> None:
    try:
        kv.close()
    except ncclkv.KVStoreError as error:
        print("close:", error)


def main(how: str, count: int) -> None:
    world = ncclkv.create("dist_sync")
    for index in range(count):
        counted = index + 1 in (WARM, count)
        one(how, index)
        if counted:
            world.barrier()
            # One write with its line end: lines of two ranks may otherwise be mixed.
            sys.stdout.write(f"rank {world.rank} | {index + 1} | {json.dumps(alive())}\n")
            sys.stdout.flush()
            world.barrier()


main(sys.argv[1], int(sys.argv[2]))
