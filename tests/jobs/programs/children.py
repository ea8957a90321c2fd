"""Children of ranks that create stores: ``python children.py CASE``.

The ranks themselves use a store before and after, and check its sums.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

CASE = sys.argv[1] if len(sys.argv) > 1 else "spawned"


def say(text: str) -> None:
    """Write a line by one call, because the lines of two ranks may be mixed."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def in_child(body: Callable[[], object]) -> None:
    """Run a function in a fork, and wait for its end; the child must not return."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)


def step(kv: Any) -> None:
    """Push ones, and check the sum."""
    kv.push("w", np.ones(10))
    assert (kv.pull("w") == kv.num_workers).all()


def creates() -> None:
    """Create a store in a child; the store must be refused."""
    import ncclkv

    try:
        ncclkv.create("dist_sync", timeout=5)
        say("created")
    except ncclkv.errors.LaunchError as error:
        say(f"refused: {error}")


def creates_local() -> None:
    import ncclkv

    # A local store under a launcher of several ranks gives a warning.
    warnings.simplefilter("ignore")
    kv = ncclkv.create("local")
    kv.init("w", np.zeros(10))
    kv.push("w", np.ones(10))
    say(f"local sum {kv.pull('w').sum():g}")


def opened() -> Any:
    import ncclkv

    kv = ncclkv.create("dist_sync")
    kv.init("w", np.zeros(10))
    step(kv)
    return kv


def around(body: Callable[[], None]) -> None:
    """Run a function in a child of each rank while the rank has a store."""
    kv = opened()
    in_child(body)
    step(kv)
    step(opened())


def forked() -> None:
    around(creates)


def forked_local() -> None:
    around(creates_local)


def forked_from_users_mpi() -> None:
    """Fork from a program that has started MPI; ncclkv is imported before the fork."""
    import mpi4py.MPI  # noqa: F401

    import ncclkv  # noqa: F401

    in_child(creates)
    step(opened())


def forked_before_import() -> None:
    """Fork after a start of MPI; the child imports ncclkv before its parent does."""
    import mpi4py.MPI  # noqa: F401

    in_child(creates)
    step(opened())


def forked_without_mpi() -> None:
    """Start MPI in the children alone, each of which is then its rank's process."""
    in_child(lambda: step(opened()))


def nothing() -> None:
    pass


def spawned() -> None:
    """Spawn a child, which runs the program again, because it has no ``__main__`` guard."""
    kv = None
    try:
        kv = opened()
    except Exception as error:
        say(f"refused: {error}")
        return
    process = multiprocessing.get_context("spawn").Process(target=nothing)
    process.start()
    process.join(20)
    step(kv)


def launched(case: str = "again", **variables: str) -> None:
    """Start the program again as a new process."""
    import subprocess

    kv = opened()
    command = [sys.executable, __file__, case]
    subprocess.run(command, env={**os.environ, **variables}, check=False)
    step(kv)


def again() -> None:
    creates()


def launched_alone() -> None:
    launched("place", NCCLKV_ALONE="1")


def place() -> None:
    """Write the place of this process among the ranks of a store."""
    kv = opened()
    say(f"{kv.rank} of {kv.num_workers}")


globals()[CASE]()
