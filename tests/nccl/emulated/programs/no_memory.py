"""Device memory that runs out on the last rank, in one verb; ``python no_memory.py VERB ...``.

Each allocation of the verb has a store of its own, in which it and all later ones fail until the
verb's end. The rank then calls the verb again, and all ranks make a step, whose sum must be
correct. Each rank prints one line an allocation.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import cupy
import numpy as np

import ncclkv
from tests.nccl.emulated import control

TIMEOUT = 8.0
SIZE = 300_000
OUT_OF_MEMORY = 2

OPTIONS: dict[str, dict[str, Any]] = {
    "nonfinite": {"nonfinite": "raise"},
    "verify": {"verify_every": 1},
    "reproducible": {"reproducible": True},
    "missing": {"missing": "zeros"},
}
"""Options of stores whose first push is tested."""

FIRST = {"init", "push", "momentum", *OPTIONS}
"""Verbs of a store that has made no step yet."""


def replace(key: Any, total: Any, stored: Any) -> None:
    stored[...] = total


class Store:
    """A store, its arrays, and the verb in which the memory runs out."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.kv = ncclkv.create("nccl", timeout=TIMEOUT, **OPTIONS.get(verb, {}))
        self.gradient = cupy.ones(SIZE, np.float32)
        self.out = cupy.zeros(SIZE, np.float32)
        self.on_host = np.ones(SIZE, np.float32)
        if verb != "init":
            self.kv.init("w", np.zeros(SIZE, np.float32))
        if verb in ("momentum", "capture"):
            self.kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0, momentum=0.5))
        if verb not in FIRST:
            self.step()
            self.kv.wait()

    def step(self) -> None:
        self.kv.push("w", self.gradient)
        self.kv.pull("w", out=self.out)

    def act(self) -> None:
        """Call the verb, and wait for its work."""
        if self.verb == "init":
            self.kv.init("w", np.zeros(SIZE, np.float32))
        elif self.verb == "set_optimizer":
            self.kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0, momentum=0.5))
        elif self.verb == "capture":
            with self.kv.capture() as step:
                self.step()
            step.replay()
        elif self.verb == "host":
            self.kv.push("w", self.on_host)
            self.kv.pull("w", out=self.on_host)
        elif self.verb == "pull":
            self.kv.pull("w")
        else:
            self.step()
        self.kv.wait()

    def then(self) -> str:
        """Return the state of the store: it is broken, or its next step is correct."""
        try:
            self.kv.set_updater(replace)
            self.step()
            self.kv.wait()
        except ncclkv.KVStoreError:
            return "broken"
        right = float(self.out.min()) == float(self.out.max()) == self.kv.num_workers
        return "goes on" if right else "WRONG"


def outcome_of(call: Any) -> str:
    """Return the name and the text of a call's error, or "passed"."""
    try:
        call()
    except ncclkv.KVStoreError as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "passed"


def free() -> None:
    """Return CuPy's free memory to the device, so that the verb must allocate."""
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()


def allocations(verb: str, world: ncclkv.KVStore) -> int:
    """Return the count of the verb's allocations on the last rank."""
    store = Store(verb)
    free()
    count = np.array([-control.calls("cudaMalloc")], np.int64)
    store.act()
    count += control.calls("cudaMalloc")
    store.kv.close()
    if world.rank != world.num_workers - 1:
        count[:] = 0
    world.pushpull("allocations", count, out=count)
    return int(count[0])


def run_out(verb: str, nth: int, world: ncclkv.KVStore) -> None:
    """Let all allocations fail from one on, and print this rank's line."""
    store = Store(verb)
    free()
    world.barrier()
    if world.rank == world.num_workers - 1:
        control.fail("cudaMalloc", -nth, OUT_OF_MEMORY)
    begin = time.monotonic()
    outcome = outcome_of(store.act)
    control.fail("cudaMalloc", 0, 0)
    again = outcome_of(store.act) if outcome.startswith("OutOfMemory") else ""
    seconds = time.monotonic() - begin
    parts = [f"rank {world.rank}", f"{verb} {nth}", f"{seconds:.2f}", outcome, again, store.then()]
    print(" | ".join(parts), flush=True)
    outcome_of(store.kv.close)
    world.barrier()


def main(verbs: list[str]) -> None:
    world = ncclkv.create("dist_sync")
    world.init("allocations", np.zeros(1, np.int64))
    for verb in verbs:
        for nth in range(1, allocations(verb, world) + 1):
            run_out(verb, nth, world)


main(sys.argv[1:])
