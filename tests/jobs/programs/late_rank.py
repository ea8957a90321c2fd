"""A rank that does not arrive at a wait of all ranks; ``python late_rank.py WHERE``.

The rank sleeps in C and holds the interpreter's lock, so no Python code runs in its process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import ncclkv
from ncclkv.system import watchdog


def sleep(seconds: int) -> None:
    """Touch the file that MARK names, and hold the interpreter's lock for `seconds`."""
    Path(os.environ["MARK"]).touch()
    ctypes.PyDLL(None).sleep(seconds)


def before() -> None:
    """Do not start MPI on rank 1."""
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    if rank == 1:
        sleep(60)
    ncclkv.create("dist_sync")


def between() -> None:
    """Create the first communicator of a store on rank 1, and not the second."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        MPI.COMM_WORLD.Idup()[1].Wait()
        sleep(60)
    ncclkv.create("dist_sync")


def locked() -> None:
    """Make one call on rank 1 that exceeds its limit."""
    kv = ncclkv.create("dist_sync")
    if kv.rank == 1:
        with watchdog.guard("a long call", 1.5):
            sleep(4)
    kv.close()


def again() -> None:
    """Let the last of many calls on rank 1 exceed its limit."""
    kv = ncclkv.create("dist_sync")
    if kv.rank == 1:
        alarm = watchdog.Alarm("one of many calls", 1.5)
        for _ in range(100):
            with alarm:
                pass
        sleep(2)
        with alarm:
            sleep(4)
    kv.close()


def in_time() -> None:
    """Make calls within their limits, nested and one after another."""
    kv = ncclkv.create("dist_sync")
    with watchdog.guard("a short call", 1.0):
        with watchdog.guard("one in it", 0.5):
            sleep(0)
        sleep(0)
    alarm = watchdog.Alarm("one of two calls", 1.0)
    for _ in range(2):
        with alarm:
            sleep(0)
    sleep(2)
    alarm.close()
    with alarm:
        sleep(2)
    kv.close()


globals()[sys.argv[1]]()
