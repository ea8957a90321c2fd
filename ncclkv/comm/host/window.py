"""Windows of MPI: shared memory of a node, mapped once more by this process.

MPI unmaps the memory of a window when all ranks free the window together.  Arrays of a closed or
dropped store may still be in use then.  So the window is freed at once, and this process keeps a
mapping of its own while an array needs the mapping.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ncclkv.comm.shm.segment import libc, mapped_array
from ncclkv.comm.types import Buffer
from ncclkv.system.memory_left import memory_left

if TYPE_CHECKING:
    from mpi4py import MPI

_SHARED = "/dev/shm"
"""Directory in which MPI libraries make the files of windows."""

_MAY_MOVE = 1
"""A flag of ``mremap``."""

_mapped: dict[int, int] = {}
"""Sizes of mapped windows by address: each of their pages may yet be written for the first time."""


def left() -> int:
    """Return the bytes that new windows can take on this machine.

    Windows that this process has mapped count as full, because the first write to a page that the
    system cannot supply kills the process (SIGBUS).

    Raises
    ------
    OSError
        When the machine has no directory for windows.
    """
    system = os.statvfs(_SHARED)
    free = system.f_bavail * system.f_frsize
    limit = memory_left()
    if limit is not None:
        free = min(free, limit.nbytes)
    return free - sum(_mapped.values())


def window(comm: MPI.Intracomm, nbytes: int) -> list[Buffer]:
    """Make a window of `nbytes` a rank; return the memory of each rank; collective.

    Raises
    ------
    OSError
        When MPI makes no window, or its memory cannot be mapped again.
    """
    from mpi4py import MPI

    try:
        made = MPI.Win.Allocate_shared(nbytes, 1, comm=comm)
        try:
            parts = [made.Shared_query(rank)[0] for rank in range(comm.Get_size())]
            return [_mapped_again(part.address, nbytes) for part in parts]
        finally:
            made.Free()
    except MPI.Exception as error:
        raise OSError(f"MPI makes no window of {nbytes:,} bytes a rank: {error}") from error


def _mapped_again(address: int, nbytes: int) -> Buffer:
    """Map the pages at an address also at another address."""
    # From a shared mapping, and for an old size of 0, Linux makes a second mapping.
    where = libc().mremap(address, 0, nbytes, _MAY_MOVE)
    try:
        array = mapped_array(where, nbytes, _unmap)
    except OSError as error:
        text = f"MPI's window cannot be mapped again: {error.strerror}"
        raise OSError(error.errno, text) from error
    _mapped[where] = nbytes
    return array


def _unmap(where: int, nbytes: int) -> None:
    del _mapped[where]
    libc().munmap(where, nbytes)
