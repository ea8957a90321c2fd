"""Segments: memory of one rank of a node, which the other ranks map on demand.

The preferred segment is an anonymous file.  A killed process leaves no name behind, no file system
limits the size, and a page takes memory only after the first write.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
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
    """The memory that one rank shares.

    Attributes
    ----------
    capacity : int
        Size in bytes.
    extent_bytes : int
        Bytes that are best mapped at once.
    """

    capacity: int
    extent_bytes: int

    @abstractmethod
    def map(self, start: int, nbytes: int) -> Buffer:
        """Map bytes ``[start, start + nbytes)``, whole pages; unwritten bytes are zero."""

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
    """A segment in a file without a name (``memfd_create``); owns the file's descriptor."""

    capacity = _CAPACITY
    extent_bytes = 64 * MIB

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls) -> tuple[MemfdSegment, Ticket]:
        """Create a file; return its segment and the ticket by which peers open it.

        Raises
        ------
        OSError
            When the system refuses.
        """
        segment = cls(os.memfd_create("ncclkv", os.MFD_CLOEXEC))
        token = os.urandom(_TOKEN_BYTES)
        os.ftruncate(segment._descriptor, _CAPACITY)
        os.pwrite(segment._descriptor, token, _CAPACITY - _TOKEN_BYTES)
        return segment, Ticket(os.getpid(), segment._descriptor, token)

    @classmethod
    def open(cls, ticket: Ticket) -> MemfdSegment:
        """Open the file of a peer.

        Raises
        ------
        OSError
            When the file is not visible here, as in another container.
        """
        path = f"/proc/{ticket.process}/fd/{ticket.descriptor}"
        segment = cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        found = os.pread(segment._descriptor, _TOKEN_BYTES, _CAPACITY - _TOKEN_BYTES)
        if found != ticket.token:
            segment.close()
            raise FileNotFoundError(f"{path} is another file")
        return segment

    def map(self, start: int, nbytes: int) -> Buffer:
        # Before Python 3.13 each mmap.mmap keeps a descriptor open: a closed store would then hold
        # descriptors as long as any of its arrays exists.
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        where = libc().mmap(None, nbytes, protection, mmap.MAP_SHARED, self._descriptor, start)
        return mapped_array(where, nbytes, libc().munmap)

    def close(self) -> None:
        self._close()


def mapped_array(where: int, nbytes: int, unmap: Callable[[int, int], object]) -> Buffer:
    """Return the bytes of a new mapping, which is unmapped with the array and all its views.

    Parameters
    ----------
    where : int
        The address that ``mmap`` or ``mremap`` has returned.
    nbytes : int
    unmap : callable
        Called with `where` and `nbytes` after the array and all its views are gone.

    Raises
    ------
    OSError
        When `where` is ``MAP_FAILED``.
    """
    if where == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_uint8 * nbytes).from_address(where)
    weakref.finalize(memory, unmap, where, nbytes).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


@cache
def libc() -> Any:
    """Return the C library, with the types of its functions for mappings."""
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, integer, offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_long
    library.mmap.restype = library.mremap.restype = pointer
    library.mmap.argtypes = [pointer, size, integer, integer, integer, offset]
    library.mremap.argtypes = [pointer, size, size, integer]
    library.munmap.argtypes = [pointer, size]
    return library


class WindowSegment(Segment):
    """A rank's part of a window, already mapped; it has no memory for arrays."""

    def __init__(self, memory: Buffer) -> None:
        self.capacity = self.extent_bytes = memory.size
        self._memory = memory

    def map(self, start: int, nbytes: int) -> Buffer:
        return self._memory[start : start + nbytes]

    def close(self) -> None:
        self._memory = self._memory[:0]
