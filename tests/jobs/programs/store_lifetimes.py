"""Jobs whose stores are closed, dropped, broken or forked; ``python store_lifetimes.py CASE``."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

import ncclkv
from ncclkv.errors import CommAborted, RankLost


def opened() -> ncclkv.KVStore:
    """Return a store over all ranks with one key."""
    kv = ncclkv.create("dist_sync")
    kv.init("w", np.zeros(5000))
    return kv


def step(kv: ncclkv.KVStore) -> None:
    """Push ones, and check the sum."""
    kv.push("w", np.ones(5000))
    assert (kv.pull("w") == kv.num_workers).all()


def mark() -> None:
    """Mark the time from which the end of the job is counted."""
    Path(os.environ["MARK"]).touch()


def close_twice() -> None:
    kv = opened()
    step(kv)
    kv.close()
    kv.close()


def close_forgotten() -> None:
    kv = opened()
    step(kv)
    kv.push("w", np.ones(5000))


def several_forgotten() -> None:
    stores = [opened() for _ in range(3)]
    for kv in stores:
        step(kv)


def caught_outside() -> None:
    """Leave the store on rank 1 by an error that the rank survives; others get its reason."""
    try:
        with opened() as kv:
            step(kv)
            if kv.rank == 1:
                mark()
                raise ValueError("not today")
            step(kv)
    except (ValueError, RankLost) as error:
        # One write, because the lines of two ranks may be mixed.
        sys.stdout.write(f"rank {kv.rank} goes on after {type(error).__name__}: {error}\n")
    with opened() as kv:
        step(kv)


def other_order() -> None:
    """Make a call on rank 2 that the others do not make."""
    kv = opened()
    step(kv)
    mark()
    if kv.rank == 2:
        kv.barrier()
    step(kv)


def ends_early() -> None:
    """Make one step less on rank 1 than on the others."""
    kv = opened()
    for index in range(5):
        if index == 4 and kv.rank == 1:
            mark()
            return
        step(kv)


def fails_in_a_thread() -> None:
    def work() -> None:
        mark()
        raise ValueError("in a thread")

    kv = opened()
    if kv.rank == 2:
        threading.Thread(target=work).start()
    while True:
        step(kv)


def exits_in_a_thread() -> None:
    """Call `sys.exit` in a thread, which ends the thread alone."""
    kv = opened()
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
    step(kv)
    kv.close()


def fails_while_others_compute() -> None:
    kv = opened()
    step(kv)
    if kv.rank == 2:
        mark()
        raise ValueError("while others compute")
    time.sleep(60)


def forked_child_fails() -> None:
    kv = opened()
    if kv.rank == 1:
        child = os.fork()
        if child == 0:
            raise ValueError("in a forked child")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    step(kv)
    kv.close()


def finalizes_before_closing() -> None:
    """End MPI before two stores end: one is used and closed, the other dropped."""
    from mpi4py import MPI

    kv, forgotten = opened(), opened()
    step(kv)
    step(forgotten)
    MPI.Finalize()
    try:
        kv.push("w", np.ones(5000))
        kv.wait()
    except CommAborted as error:
        sys.stdout.write(f"{error}\n")
    kv.close()


def prints_to_nobody() -> None:
    """Close standard output before the failure is printed."""
    kv = opened()
    if kv.rank == 1:
        mark()
        sys.stdout = open(os.devnull)  # noqa: SIM115
        sys.stdout.close()
        raise ValueError("with standard output closed")
    step(kv)


def waits_for_ever() -> None:
    """Wait on all ranks but one, until the job is ended from outside."""
    kv = opened()
    if kv.rank == 0:
        mark()
        time.sleep(60)
    step(kv)


globals()[sys.argv[1]]()
