"""Segments: memory that one rank gives to its node, and that other ranks map on demand.

The best is an anonymous file: no name is left behind by a process that is killed, no file system
limits its size, and a page takes memory only once somebody has written to it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ncclkv.comm.types import Buffer

MIB = 1024 * 1024

_CAPACITY = 1 << 44
"""Maximum size.  The file is sparse: unwritten pages take no memory."""

_TOKEN_BYTES = 16

_MAP_FAILED = ctypes.c_void_p(-1).value


class Segment(ABC):
    """The memory that one rank gives.

    Attributes
    ----------
    capacity : int
        Bytes.
    extent_bytes : int
        How much is best mapped at once.
    """

    capacity: int
    extent_bytes: int

    @abstractmethod
    def map(self, start: int, nbytes: int) -> Buffer:
        """Bytes ``[start, start + nbytes)``, zero where nobody has written; whole pages."""

    @abstractmethod
    def close(self) -> None:
        """Refuse further mappings; existing ones stay valid."""


@dataclass(frozen=True)
class Ticket:
    """Address of a rank's file for another process, with a token that identifies the file."""

    process: int
    descriptor: int
    token: bytes


class MemfdSegment(Segment):
    """A file in memory, by its descriptor, which it takes over."""

    capacity = _CAPACITY
    extent_bytes = 64 * MIB

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls) -> tuple[MemfdSegment, Ticket]:
        """A new file of this process, and how its peers find it.

        Raises
        ------
        OSError
            Where the system refuses.
        """
        space = cls(os.memfd_create("ncclkv", os.MFD_CLOEXEC))
        token = secrets.token_bytes(_TOKEN_BYTES)
        os.ftruncate(space._descriptor, _CAPACITY)
        os.pwrite(space._descriptor, token, _CAPACITY - _TOKEN_BYTES)
        return space, Ticket(os.getpid(), space._descriptor, token)

    @classmethod
    def open(cls, ticket: Ticket) -> MemfdSegment:
        """The file of a peer.

        Raises
        ------
        OSError
            When it cannot be reached, as from within another container.
        """
        path = f"/proc/{ticket.process}/fd/{ticket.descriptor}"
        space = cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        found = os.pread(space._descriptor, _TOKEN_BYTES, _CAPACITY - _TOKEN_BYTES)
        if found != ticket.token:
            space.close()
            raise FileNotFoundError(f"{path} is not the memory of that rank")
        return space

    def map(self, start: int, nbytes: int) -> Buffer:
        return _mapped(self._descriptor, start, nbytes)

    def close(self) -> None:
        self._close()


def _mapped(descriptor: int, start: int, nbytes: int) -> Buffer:
    """A part of a file, mapped as long as it is used, by itself or by its views.

    `mmap.mmap` keeps a descriptor of its own for each map before Python 3.13, so a store that was
    closed would keep some as long as an array of it is used.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    where = _libc().mmap(None, nbytes, protection, mmap.MAP_SHARED, descriptor, start)
    if where == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_uint8 * nbytes).from_address(where)
    weakref.finalize(memory, _libc().munmap, where, nbytes).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


@cache
def _libc() -> Any:
    """The C library, with the types of its calls."""
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number, offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_long
    libc.mmap.restype, libc.mmap.argtypes = pointer, [pointer, size, number, number, number, offset]
    libc.munmap.argtypes = [pointer, size]
    return libc


class WindowSegment(Segment):
    """A rank's part of a window, mapped already, which has room for no arrays."""

    def __init__(self, memory: Buffer) -> None:
        self.capacity = self.extent_bytes = memory.size
        self._memory = memory

    def map(self, start: int, nbytes: int) -> Buffer:
        return self._memory[start : start + nbytes]

    def close(self) -> None:
        self._memory = self._memory[:0]
