"""A job for ``ncclkv run``; ``python restarts.py CASE``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

import ncclkv

RESTART = int(os.environ.get("NCCLKV_RESTART", "-1"))


def mark() -> None:
    """Mark the time from which the end of the job is awaited."""
    Path(os.environ["MARK"]).touch()


def step(kv: ncclkv.KVStore) -> None:
    """Push ones, and check the sum."""
    kv.push("w", np.ones(5000))
    assert (kv.pull("w") == kv.num_workers).all()


def opened() -> ncclkv.KVStore:
    kv = ncclkv.create("dist_sync")
    kv.init("w", np.zeros(5000))
    return kv


def works() -> None:
    """Write to both streams on all ranks."""
    with opened() as kv:
        step(kv)
        print(f"out of {kv.rank}")
        print(f"err of {kv.rank}", file=sys.stderr)


def chatters() -> None:
    """Write many lines of many lengths on all ranks, without waits."""
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    for index in range(3000):
        print(f"{rank} {index} {'x' * (index * 7 % 500)} end")


def goes_on() -> None:
    """Stop rank 1 for a while."""
    kv = opened()
    if kv.rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    step(kv)
    kv.close()


def bad_end(where: str, way: str) -> None:
    """Fail on rank 1 before the store is created, or between two steps."""
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))

    def end() -> None:
        mark()
        if way == "raise":
            raise ValueError("told to fail")
        if way == "exit":
            sys.exit(7)
        if way == "caught":
            with suppress(SystemExit):
                sys.exit(7)
            return
        if way.isdigit():
            os._exit(int(way))
        os.kill(os.getpid(), getattr(signal, way))

    if where == "before" and rank == 1:
        end()
    kv = opened()
    step(kv)
    if rank == 1:
        end()
    step(kv)


def third_time() -> None:
    """Fail twice, each time with a new checkpoint, and then succeed."""
    kv = opened()
    step(kv)
    loaded = kv.load(required=False)
    if kv.rank == 0:
        print(f"start {RESTART} finds {loaded.step if loaded else 'none'}", flush=True)
    saved = kv.save(step=10 * (RESTART + 1))
    if kv.rank == 0:
        (Path(saved).parent / ".saving-step-000000099-save-000099").mkdir()  # incomplete
    kv.barrier()
    if RESTART < 2 and kv.rank == 1:
        os._exit(5)
    step(kv)
    kv.close()


def waits() -> None:
    """Sleep on rank 0, while the others wait for it."""
    kv = opened()
    if kv.rank == 0:
        mark()
        time.sleep(60)
    step(kv)


def stubborn() -> None:
    """Sleep on rank 0, while the others wait; all ranks ignore SIGTERM."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    waits()


globals()[sys.argv[1]](*sys.argv[2:])
