"""Sharing methods: memory files, or an MPI window that arrays are copied through."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ncclkv.comm.shm.node import CONTROL_BYTES, PAGE
from ncclkv.comm.shm.segment import MIB, MemfdSegment, Segment, WindowSegment
from ncclkv.comm.shm.staging import HALF_BYTES
from ncclkv.comm.transport import Transport

_DESCRIPTORS = 6
_SPARE_DESCRIPTORS = 64
"""Descriptors of each rank of the node (its file and mapped parts), and spare ones for the user."""


class SharingMethod(ABC):
    """One way to share memory.

    Each rank makes an offer; when all have one, they join.  Either all ranks share, or none.

    Attributes
    ----------
    name : str
        As in ``NCCLKV_NODE_MEMORY``.
    does : str
        What the ranks of a node do, for the log.
    """

    name: str
    does: str

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ranks = list(transport.node)

    @abstractmethod
    def offer(self) -> Any:
        """Return the description of this rank's memory for the other ranks; local.

        Raises
        ------
        OSError
            When it has none to share.
        """

    @abstractmethod
    def join(self, offers: Sequence[Any]) -> list[Segment]:
        """The memory of the ranks of this node, out of all ranks' offers; collective.

        Raises
        ------
        OSError
            When it cannot be had.
        """


class MemfdSegments(SharingMethod):
    """Each rank has a file without a name, which its neighbours open through ``/proc``."""

    name = "files"
    does = "share memory: anonymous files"

    def offer(self) -> Any:
        try:
            free = _free_descriptors()
            if free < _DESCRIPTORS * len(self._ranks) + _SPARE_DESCRIPTORS:
                raise OSError(f"{free} file descriptors are left; raise the limit by ulimit -n")
            self._own, ticket = MemfdSegment.create()
        except (AttributeError, ImportError) as error:  # this is not Linux
            raise OSError(str(error)) from error
        return ticket

    def join(self, offers: Sequence[Any]) -> list[Segment]:
        spaces: list[Segment] = []
        here = self._transport.rank
        for rank in self._ranks:
            try:
                spaces.append(self._own if rank == here else MemfdSegment.open(offers[rank]))
            except OSError as error:
                raise OSError(f"rank {here} cannot open that of rank {rank}: {error}") from error
        return spaces


def _free_descriptors() -> int:
    """Return the number of files that this process may still open."""
    import resource  # which not every system has

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = len(os.listdir("/proc/self/fd"))
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - used


class StagedWindow(SharingMethod):
    """The node has a window, of a fixed size, that arrays are copied through."""

    name = "halves"
    does = f"copy through shared memory: a window with halves of {HALF_BYTES // MIB} MiB"

    def offer(self) -> Any:
        # Half, since others take memory too, and a page that cannot be had ends the process.
        left = self._transport.windows_left() // 2 // len(self._ranks) // PAGE * PAGE
        if left < CONTROL_BYTES:
            raise OSError(
                f"half of the memory that is free for windows is {max(left, 0) / MIB:.1f} MiB a "
                f"rank, and {CONTROL_BYTES / MIB:.1f} are needed"
            )

    def join(self, offers: Sequence[Any]) -> list[Segment]:
        return [WindowSegment(part) for part in self._transport.window(CONTROL_BYTES)]


WAYS: tuple[type[SharingMethod], ...] = (MemfdSegments, StagedWindow)
"""The best first."""
