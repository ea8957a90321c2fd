"""Small jobs that differ in how they end: ``python mpi_end.py CASE [first]``.

With ``first`` the program imports ``mpi4py.MPI`` before ncclkv, so that mpi4py ends MPI.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

if "first" in sys.argv[2:]:
    import mpi4py.MPI  # noqa: F401

import ncclkv
from ncclkv.errors import KVStoreError, OrderMismatch

CODE = 5


def opened() -> ncclkv.KVStore:
    """Return a store over all ranks with one key."""
    kv = ncclkv.create("dist_sync")
    kv.init("w", np.zeros(10))
    return kv


def step(kv: ncclkv.KVStore) -> None:
    """Push ones, and check the sum."""
    kv.push("w", np.ones(10))
    assert (kv.pull("w") == kv.num_workers).all()


def say(text: str) -> None:
    """Write a line by one call, because the lines of two ranks may be mixed."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def mark() -> None:
    """Record the time from which the end of the job is counted."""
    Path(os.environ["MARK"]).touch()


def caught() -> int:
    """Stop the last rank; the others catch the error, and return an exit code."""
    kv = opened()
    step(kv)
    if kv.rank == kv.num_workers - 1:
        mark()
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        step(kv)
    except KVStoreError as error:
        say(f"rank {kv.rank} catches {type(error).__name__}")
        return CODE
    return 0


def exits() -> None:
    sys.exit(caught())


def raises() -> None:
    raise SystemExit(caught())


def finalizes() -> None:
    """End MPI in the program after the failure."""
    from mpi4py import MPI

    if caught():
        MPI.Finalize()
        say("MPI_Finalize came back")


def closed() -> int:
    """Train, and close the store; return the rank."""
    kv = opened()
    step(kv)
    kv.close()
    if kv.rank == 1:
        mark()
    return kv.rank


def thread() -> None:
    if closed() == 1:
        threading.Thread(target=time.sleep, args=(60,), name="never-ends").start()


def never_ends() -> None:
    time.sleep(60)


def hook() -> None:
    if closed() == 1:
        atexit.register(never_ends)


def stops() -> None:
    if closed() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def gone() -> None:
    if closed() == 1:
        os._exit(CODE)


def late() -> None:
    """Let rank 1 evaluate for longer than the deadline."""
    if closed() == 1:
        time.sleep(2.5)
    say("ends well")


def exits_late() -> None:
    """Exit on rank 0 with a code while rank 1 has a little work to do."""
    rank = closed()
    if rank == 0:
        sys.exit(CODE)
    if rank == 1:
        time.sleep(1)
    say("ends well")


def recovers() -> None:
    """Break a store on all ranks; they create another, and exit at different times."""
    kv = opened()
    try:
        if kv.rank == 1:
            kv.barrier()
        step(kv)
    except OrderMismatch:
        say("caught")
    late()


globals()[sys.argv[1]]()
