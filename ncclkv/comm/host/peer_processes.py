"""Processes of a communicator's other ranks, watched without MPI."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.host.liveness import Endpoint, liveness
from ncclkv.system import abort, stacks
from ncclkv.system.processes import Process, namespace, process

if TYPE_CHECKING:
    from mpi4py import MPI


class RankProcess(NamedTuple):
    """The process of a rank, as the rank describes it.

    Attributes
    ----------
    world_rank : int
        The rank in ``MPI_COMM_WORLD``.
    host : str
    pid : int
    namespace : int
        As `processes.namespace`.
    signal : int
        As `stacks.signal_here`.
    """

    world_rank: int
    host: str
    pid: int
    namespace: int
    signal: int

    def __str__(self) -> str:
        return f"rank {self.world_rank} on {self.host} (pid {self.pid})"

    def state(self) -> str:
        """Describe the process, seen from its own machine, if it is stopped or has ended."""
        return process(self.pid).state()

    def show_stacks(self) -> None:
        """Make the process, which is on this machine, write the stacks of its threads."""
        stacks.show(self.pid, self.signal)


class PeerProcesses:
    """The other ranks: their processes on this machine, their ports on others.

    Collective over the ranks of `comm`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    on_machine : sequence of int
        The ranks of `comm` on this machine.
    library : str
        The MPI library's name.

    Attributes
    ----------
    failed : set of int
        The ranks about which MPI has reported an error.
    """

    def __init__(self, comm: MPI.Comm, on_machine: Sequence[int], library: str) -> None:
        self.failed: set[int] = set()
        self._notified: set[int] = set()
        self._is_warning_due = False
        several = len(on_machine) < comm.Get_size()
        own = comm.Get_rank()
        here = _own_process()
        # Ranks of one machine need no port.
        described = comm.allgather((here, liveness().endpoint if several else None))
        self._all: list[RankProcess] = [each for each, _ in described]
        self._near: dict[int, Process] = {
            rank: process(self._all[rank].pid)
            for rank in on_machine
            if rank != own and here.namespace and self._all[rank].namespace == here.namespace
        }
        self._far: dict[int, Endpoint] = {
            rank: endpoint
            for rank, (_, endpoint) in enumerate(described)
            if rank not in on_machine and endpoint is not None
        }
        if not several:
            return
        self._liveness = liveness()
        # Each rank begins with the next one: the limit on connections then spreads over the ranks.
        nearest_first = sorted(self._far, key=lambda rank: (rank - own) % len(self._all))
        self._liveness.watch(self._far[rank] for rank in nearest_first)
        # Open MPI ends a process that finds a connection broken, and calls no error handler.
        self._is_warning_due = "Open MPI" in library

    def of(self, rank: int) -> RankProcess:
        """Return the process of a rank."""
        return self._all[rank]

    def is_near(self, rank: int) -> bool:
        """Return whether the process of another rank can be seen from here."""
        return rank in self._near

    def has_ended(self, rank: int) -> bool:
        """Return whether the process of a rank is known to have ended."""
        if rank in self._near:
            return self._near[rank].has_ended()
        return rank in self._far and self._liveness.has_ended(self._far[rank])

    def warn_of_loss(self) -> None:
        """Write one line that names ended ranks, because MPI may now end this process silently.

        Called before each call of MPI that exchanges messages; only Open MPI ends processes.
        """
        if not self._is_warning_due or not (ended := self._liveness.ended()):
            return
        self._is_warning_due = False
        lost = [rank for rank, endpoint in self._far.items() if endpoint in ended]
        if lost:
            hosts = ", ".join(dict.fromkeys(self._all[rank].host for rank in lost))
            sys.stderr.write(
                f"{abort.here()} has lost {format_ranks(lost)} on {hosts}: no farewell arrived; "
                f"Open MPI may now end this rank, too\n"
            )
            sys.stderr.flush()

    def may_notify(self, rank: int, *, after_failure: bool) -> bool:
        """Return whether a notice may be sent to a rank; never to a rank known to have ended.

        This process does not watch every rank of other machines.  After a failure, a rank that is
        not watched receives one notice: True is returned once for the rank, and then False.
        """
        if rank in self.failed or self.has_ended(rank):
            return False
        watched = rank not in self._far or self._liveness.watches(self._far[rank])
        if watched or not (after_failure or self.failed):
            return True
        is_first = rank not in self._notified
        self._notified.add(rank)
        return is_first


def _own_process() -> RankProcess:
    """Return the description of this process."""
    from mpi4py import MPI

    return RankProcess(
        world_rank=MPI.COMM_WORLD.Get_rank(),
        host=socket.gethostname(),
        pid=os.getpid(),
        namespace=namespace(),
        signal=stacks.signal_here(),
    )
