"""A job in which ranks exit at different times: ``ncclkv run ... python early_exits.py CASE``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import ncclkv

RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def mark() -> None:
    """Mark the time from which the end of the job is awaited."""
    Path(os.environ["MARK"]).touch()


def opened() -> ncclkv.KVStore:
    kv = ncclkv.create("dist_sync")
    kv.init("w", np.zeros(500))
    return kv


def step(kv: ncclkv.KVStore) -> None:
    kv.push("w", np.ones(500))
    assert (kv.pull("w") == kv.num_workers).all()


def leave(way: str) -> None:
    """End this rank with exit code 0, without MPI_Finalize."""
    mark()
    if way == "exec":
        os.execv("/bin/true", ["/bin/true"])
    os._exit(0)


def steps(way: str) -> None:
    """Exit on rank 1 during the steps."""
    kv = opened()
    for index in range(100):
        if (RANK, index) == (1, 5):
            leave(way)
        step(kv)


def catches(way: str, then: str = "exits") -> None:
    """Exit on rank 1 during the steps; the others catch the error and end by themselves."""
    kv = opened()
    for index in range(100):
        if (RANK, index) == (1, 5):
            mark()
            if way == "unknown":
                raise SystemExit(17)
            sys.exit(int(way))
        try:
            step(kv)
        except ncclkv.errors.CommError as error:
            if then == "raises":
                raise RuntimeError("the training has stopped") from error
            if then == "ends at once":
                os._exit(5)
            sys.exit(5)


def handles_a_signal() -> None:
    """Exit on rank 0 with exit code 0, in a signal handler."""
    kv = opened()
    signal.signal(signal.SIGUSR1, lambda signum, frame: sys.exit(0))
    for index in range(100):
        if (RANK, index) == (0, 5):
            mark()
            os.kill(os.getpid(), signal.SIGUSR1)
        step(kv)


def writes_events() -> None:
    """Write lines to the inherited pipe of events that are none."""
    descriptor = int(os.environ["NCCLKV_RUN_EVENTS"].partition(":")[0])
    os.set_blocking(descriptor, True)
    long = [b"x" * 70_000, b"x" * 65_530]
    forged = [b"ncclkv-event exits abc", b"ncclkv-event exits 99999", b"ncclkv-event other"]
    if RANK == 0:
        os.write(descriptor, b"a line without an end, before events")
    for line in [b"exits abc", b"failed x", b"other", b"\xff", b"a\0b", b"", *long, *forged]:
        if RANK == 1:
            os.write(descriptor, line + b"\n")
    time.sleep(4)  # longer than a failed job may last
    step(opened())


def loses_its_supervisor(way: str) -> None:
    """Kill the supervisor of rank 1, or stop it before the end of the rank."""
    step(opened())
    if RANK == 1:
        mark()
        os.kill(os.getppid(), getattr(signal, way))
        if way == "SIGSTOP":
            os._exit(7)
    time.sleep(60)


def computes(way: str) -> None:
    """Exit on rank 1, which the others do not need for a long time."""
    kv = opened()
    step(kv)
    if RANK == 1:
        leave(way)
    time.sleep(60)


def evaluates(seconds: str) -> None:
    """Continue on rank 0 alone after the exit of the others."""
    with opened() as kv:
        step(kv)
    if RANK == 0:
        mark()
        import mpi4py.MPI

        mpi4py.MPI.Finalize()  # the others wait for it at their exit
        time.sleep(float(seconds))
        print("evaluated")


def before(way: str) -> None:
    """Exit or sleep on rank 1 before MPI's start, in which the others wait for it."""
    if RANK == 1:
        if way == "sleeps":
            time.sleep(60)
        mark()
        sys.exit(0)
    opened()


def quotes() -> None:
    """Print the lines of another job on rank 1."""
    with opened() as kv:
        step(kv)
        if RANK == 1:
            line = "ncclkv: rank 0 of 2 on other (pid 1) failed, ending the job: ValueError: of it"
            print(line, file=sys.stderr, flush=True)
            time.sleep(4)  # longer than a failed job may last
        step(kv)


def long_lines(count: str) -> None:
    """Write a line on each rank that exceeds a pipe, and short lines before and after it."""
    print(f"begin {RANK}")
    print(str(RANK) * int(count))
    print(f"end {RANK}")


globals()[sys.argv[1]](*sys.argv[2:])
