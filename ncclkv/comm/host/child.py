"""Child processes of a rank, forked or spawned: they are no ranks, and create no stores."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from ncclkv import env
from ncclkv.errors import LaunchError
from ncclkv.system import abort

_SPAWNED = ("--multiprocessing-fork", "multiprocessing.forkserver")
"""Words of the command line by which multiprocessing starts a process."""

_parents_mpi = False
"""True when the process that this one was forked from started MPI."""


def _note_fork() -> None:
    """Note in a forked child whether its parent had MPI."""
    global _parents_mpi
    _parents_mpi = _parents_mpi or abort.running_mpi() is not None


def _parent_has_mpi() -> bool:
    """Return whether the parent process has loaded the MPI library, as no launcher has."""
    try:
        maps = Path(f"/proc/{os.getppid()}/maps").read_text(errors="replace")
    except OSError:
        return False
    return "/libmpi.so" in maps or "/libmpi_abi.so" in maps


# A fork before this import is found by the parent, while that is there.
if abort.running_mpi() is not None:
    _parents_mpi = _parent_has_mpi()
os.register_at_fork(after_in_child=_note_fork)


def check_fork(rank: int) -> None:
    """Refuse to use the MPI of several ranks in a process forked from one of them.

    Parameters
    ----------
    rank : int
        The rank that MPI takes this process for.

    Raises
    ------
    LaunchError
        In such a process: MPI would mix up its messages with its parent's.
    """
    if _parents_mpi:
        raise LaunchError(
            f"this process ({os.getpid()}) was forked from rank {rank}, whose MPI it cannot use; "
            f"create the store in the rank itself, or a 'local' one here"
        )


def check_spawned() -> None:
    """Refuse to start MPI in a process that a rank has started.

    Raises
    ------
    LaunchError
        In such a process: the launcher takes it for the rank, and MPI would end it.
    """
    if not is_no_rank():
        return
    raise LaunchError(
        f"this process ({os.getpid()}) was started by rank {env.launched_rank()} and is no rank; "
        f"create the store in the rank alone, or set NCCLKV_ALONE=1 for a store of this process. A "
        f"process that multiprocessing spawns imports the program again: put its code under "
        f'if __name__ == "__main__":'
    )


def is_no_rank() -> bool:
    """Return whether a rank has surely started this process, and not a launcher of several."""
    return (env.launched_size() or 1) > 1 and (_is_spawned() or _has_lost_launcher())


def _is_spawned() -> bool:
    """Return whether multiprocessing started this process without a fork of the program."""
    return any(word in argument for argument in sys.orig_argv for word in _SPAWNED)


def _has_lost_launcher() -> bool:
    """Return whether the connection to the launcher, which a rank inherits, is not there."""
    descriptor = env.launcher_connection()
    if descriptor is None:
        return False
    try:
        return not stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return True
