"""Final barrier: a barrier at the end of a process, which names the missing ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ncclkv.system import processes, stacks

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG = 1


class Member(NamedTuple):
    """A process that takes part.

    Attributes
    ----------
    rank : int
        In ``MPI_COMM_WORLD``.
    host : str
    pid : int
    namespace : int
        As `processes.namespace`.
    signal : int
        As `stacks.signal_here`.
    """

    rank: int
    host: str
    pid: int
    namespace: int
    signal: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"

    @property
    def place(self) -> tuple[str, int]:
        """The machine and namespace in which the process number holds."""
        return self.host, self.namespace

    @property
    def process(self) -> processes.Process:
        """The process, seen from its own machine."""
        return processes.process(self.pid)


class FinalBarrier:
    """The barrier of one communicator's ranks; creation is collective.

    Ranks that do not wait long exchange no more messages than ``MPI_Ibarrier`` needs.  Arrivals are
    announced rank by rank only where the wait lasts.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Taken over: nothing else may use it.
    timeout : float
        Seconds between two looks at the late ranks.
    """

    def __init__(self, comm: MPI.Intracomm, timeout: float) -> None:
        from mpi4py import MPI

        self.timeout = timeout
        self._comm = comm
        self._bytes = MPI.BYTE
        self._any = MPI.ANY_SOURCE
        here = Member(
            MPI.COMM_WORLD.Get_rank(),
            socket.gethostname(),
            os.getpid(),
            processes.namespace(),
            stacks.signal_here(),
        )
        self.members: list[Member] = comm.allgather(here)
        self._here = comm.Get_rank()
        self._arrived = {self._here}
        self._sent: list[MPI.Request] = []
        self._request: MPI.Request | None = None

    def covers(self, comm: MPI.Intracomm) -> bool:
        """Return whether all ranks of `comm` take part."""
        ranks, own = comm.Get_group(), self._comm.Get_group()
        try:
            from mpi4py import MPI

            common = MPI.Group.Intersection(ranks, own)
            size = common.Get_size()
            common.Free()
            return bool(size == ranks.Get_size())
        finally:
            ranks.Free()
            own.Free()

    def enter(self) -> None:
        """Arrive, for all ranks at once; a second call does nothing."""
        if self._request is None:
            self._request = self._comm.Ibarrier()

    def passed(self) -> bool:
        """Return whether all ranks have entered."""
        return self._request is not None and bool(self._request.Test())

    def announce(self, to: Callable[[Member], bool]) -> None:
        """Tell the members that `to` picks of the arrival of this one; at most once."""
        if self._sent:
            return
        self._sent = [
            self._comm.Isend([b"", self._bytes], rank, _TAG)
            for rank, member in enumerate(self.members)
            if rank != self._here and to(member)
        ]

    def hear(self) -> None:
        """Take the announcements that have come."""
        from mpi4py import MPI

        status = MPI.Status()
        while self._comm.Iprobe(self._any, _TAG, status):
            rank = status.Get_source()
            self._comm.Recv([bytearray(), self._bytes], rank, _TAG)
            self._arrived.add(rank)

    def is_neighbour(self, member: Member) -> bool:
        """Return whether a member's process can be seen from here."""
        return member.place == self.members[self._here].place

    def late(self) -> list[Member]:
        """Return the members that have not announced their arrival."""
        return [each for rank, each in enumerate(self.members) if rank not in self._arrived]

    def is_first(self, place: tuple[str, int] | None = None) -> bool:
        """Return whether this is the lowest rank that has arrived, of all or of a place."""
        arrived = [rank for rank in self._arrived if place in (None, self.members[rank].place)]
        return min(arrived, default=None) == self._here
