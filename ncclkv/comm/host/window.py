"""Memory of an MPI window, without the window: its pages, mapped once more by this process.

MPI unmaps a window's memory when the window is freed, which all ranks must do together, while
arrays of a store that is closed or dropped are still in use.  So the window is freed at once, and
what stays is a mapping of this process's own, for as long as an array needs it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclkv.comm.types import Buffer
from ncclkv.system.memory import room

if TYPE_CHECKING:
    from mpi4py import MPI

_SHARED = "/dev/shm"
"""Directory in which MPI libraries make the files of windows."""

# mremap's flag and its answer to what it cannot do.
_MAY_MOVE = 1
_FAILED = ctypes.c_void_p(-1).value

_mapped: dict[int, int] = {}
"""Bytes of windows by their addresses: any of them may yet be written for the first time."""


def left() -> int:
    """Bytes that new windows can take on this machine, those that others may take left out.

    A page that cannot be had when it is first written to ends the process.

    Raises
    ------
    OSError
        Where there is no place for windows.
    """
    system = os.statvfs(_SHARED)
    free = system.f_bavail * system.f_frsize
    limit = room()
    if limit is not None:
        free = min(free, limit.nbytes)
    return free - sum(_mapped.values())


def window(comm: MPI.Intracomm, nbytes: int) -> list[Buffer]:
    """Shared memory of the ranks of `comm`, `nbytes` of each; collective over them.

    Raises
    ------
    OSError
        When MPI makes no window, or not of memory that can be mapped again.
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
    """The same pages at another address, until the array and all its views are gone."""
    # Of a size of 0 to be moved, Linux leaves what is shared where it is and maps it once more.
    where = _libc().mremap(address, 0, nbytes, _MAY_MOVE)
    if where == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"MPI's window cannot be mapped again: {os.strerror(number)}")
    memory = (ctypes.c_ubyte * nbytes).from_address(where)
    _mapped[where] = nbytes
    weakref.finalize(memory, _unmap, where, nbytes).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


def _unmap(where: int, nbytes: int) -> None:
    """Give pages back."""
    del _mapped[where]
    _libc().munmap(where, nbytes)


@cache
def _libc() -> Any:
    """The system calls, which Python has for files alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
