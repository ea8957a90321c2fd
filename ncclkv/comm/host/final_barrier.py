"""Final barrier: a barrier at the end of a process, which names the missing ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ncclkv.comm.host.mpi_groups import common_ranks
from ncclkv.system import processes, stacks

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG = 1


class Participant(NamedTuple):
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
    def machine(self) -> tuple[str, int]:
        """The machine and the namespace in which the process id is valid."""
        return self.host, self.namespace

    @property
    def process(self) -> processes.Process:
        """The process, seen from its own machine."""
        return processes.process(self.pid)


class FinalBarrier:
    """The barrier of one communicator's ranks; creation is collective.

    A short wait takes the messages of ``MPI_Ibarrier`` alone.  In a long wait each rank also
    announces its arrival to the other ranks, one by one.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Owned by this object: no other code may use it.
    timeout : float
        Seconds between two reports of the late ranks.

    Attributes
    ----------
    members : list of Participant
    """

    def __init__(self, comm: MPI.Intracomm, timeout: float) -> None:
        from mpi4py import MPI

        self.timeout = timeout
        self._comm = comm
        world_rank, pid, namespace = MPI.COMM_WORLD.Get_rank(), os.getpid(), processes.namespace()
        self._own = Participant(
            world_rank, socket.gethostname(), pid, namespace, stacks.signal_here()
        )
        self.members: list[Participant] = comm.allgather(self._own)
        self._arrived = {comm.Get_rank()}
        self._announcements: list[MPI.Request] = []
        self._request: MPI.Request | None = None

    def covers(self, comm: MPI.Intracomm) -> bool:
        """Return whether all ranks of `comm` take part."""
        return len(common_ranks(comm, self._comm)) == comm.Get_size()

    def enter(self) -> None:
        """Arrive, for all ranks at once; a second call does nothing."""
        if self._request is None:
            self._request = self._comm.Ibarrier()

    def passed(self) -> bool:
        """Return whether all ranks have entered."""
        return self._request is not None and bool(self._request.Test())

    def announce(self, to: Callable[[Participant], bool]) -> None:
        """Send this rank's arrival to the members that `to` selects; at most once."""
        if not self._announcements:
            self._announcements = [
                self._comm.Isend(b"", rank, _TAG)
                for rank, member in enumerate(self.members)
                if member != self._own and to(member)
            ]

    def receive_arrivals(self) -> None:
        """Receive the announcements that have arrived."""
        from mpi4py import MPI

        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            rank = status.Get_source()
            self._comm.Recv(bytearray(), rank, _TAG)
            self._arrived.add(rank)

    def is_neighbour(self, member: Participant) -> bool:
        """Return whether a member's process can be seen from here."""
        return member.machine == self._own.machine

    def late(self) -> list[Participant]:
        """Return the members that have not announced their arrival."""
        return [each for rank, each in enumerate(self.members) if rank not in self._arrived]

    def is_first(self, machine: tuple[str, int] | None = None) -> bool:
        """Return whether this is the lowest rank that has arrived, of all or of a machine."""
        arrived = [self.members[rank] for rank in sorted(self._arrived)]
        first = next((each for each in arrived if machine in (None, each.machine)), None)
        return first == self._own
