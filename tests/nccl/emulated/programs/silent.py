"""A device or an NCCL that stops answering, on the last rank;
``python silent.py WHAT WAIT [GRACE]``.

WHAT is ``device``, which runs nothing any more, or what `emulated_nccl_faults` takes as ``do``, of
the rank's next sum.  WAIT is the wait of all ranks: ``wait`` of the store, ``get`` of CuPy, or
``pull`` into memory of the host; ``leave`` is ``wait``, and the store is not closed.  Each rank
prints how its steps ended, and after how many seconds.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import cupy
import numpy as np

import ncclkv
from tests.nccl.emulated import control

DEADLINE = 4.0
SIZE = 20_000
STEPS = 5
GRACE = "1.2"
"""Seconds for the other ranks to raise too, before the first of them ends the job."""


def silence(what: str, rank: int) -> None:
    if what == "device":
        control.stop(cupy.cuda.Device().id)
        return
    faults = f"rank={rank},function=ncclAllReduce,nth=1,do={what}"
    control.library("libnccl.so.2").emulated_nccl_faults(faults.encode())


def main(what: str, wait: str, grace: str = GRACE) -> None:
    kv = ncclkv.create("nccl", timeout=DEADLINE)
    kv.init("w", np.zeros(SIZE, np.float32))
    gradient, out = cupy.ones(SIZE, np.float32), cupy.empty(SIZE, np.float32)
    on_host = np.empty(SIZE, np.float32)

    def step() -> None:
        kv.push("w", gradient)
        kv.pull("w", out=on_host if wait == "pull" else out)
        if wait in ("wait", "leave"):
            kv.wait()
        elif wait == "get":
            out.get()

    for _ in range(STEPS):
        step()
    if kv.rank == kv.num_workers - 1:
        Path(os.environ["MARK"]).touch()
        silence(what, kv.rank)
    begin = time.monotonic()
    try:
        for _ in range(STEPS):
            step()
        outcome = "passed | "
    except ncclkv.KVStoreError as error:
        outcome = f"{type(error).__name__} | {' '.join(str(error).split())}"
    seconds = time.monotonic() - begin
    sys.stdout.write(f"rank {kv.rank} | {seconds:.2f} | {outcome}\n")
    sys.stdout.flush()
    if wait != "leave":
        with suppress(ncclkv.KVStoreError):
            kv.close()
    if not outcome.startswith("passed"):
        time.sleep(float(grace))
        raise SystemExit(1)


main(*sys.argv[1:])
