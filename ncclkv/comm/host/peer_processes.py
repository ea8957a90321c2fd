"""Processes of a communicator's other ranks, watched without MPI."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.host.liveness import Endpoint, liveness
from ncclkv.system import abort
from ncclkv.system.processes import Process, namespace, process

if TYPE_CHECKING:
    from mpi4py import MPI


class PeerProcesses:
    """The other ranks: their processes on this machine, their ports on others.

    Collective over the ranks of both communicators.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    machine : mpi4py.MPI.Comm
        The ranks of `comm` on this machine.
    library : str
        The MPI library's name.

    Attributes
    ----------
    failed : set of int
        The ranks about which MPI has reported an error.
    """

    def __init__(self, comm: MPI.Comm, machine: MPI.Comm, library: str) -> None:
        self.failed: set[int] = set()
        self._notified: set[int] = set()
        self._far: dict[int, Endpoint] = {}
        self._is_warning_due = False
        own = comm.Get_rank()
        near = machine.allgather((own, os.getpid(), namespace()))
        self._near: dict[int, Process] = {
            rank: process(pid)
            for rank, pid, pid_namespace in near
            if rank != own and pid_namespace and pid_namespace == namespace()
        }
        if len(near) == comm.Get_size():
            return
        self._liveness = liveness()
        rows = comm.allgather((socket.gethostname(), *self._liveness.endpoint))
        self._hosts = [host for host, *_ in rows]
        on_machine = [rank for rank, *_ in near]
        self._far = {
            rank: Endpoint(*each) for rank, (_, *each) in enumerate(rows) if rank not in on_machine
        }
        # Each rank begins with the next one: the limit on connections then spreads over the ranks.
        nearest_first = sorted(self._far, key=lambda rank: (rank - own) % len(rows))
        self._liveness.watch(self._far[rank] for rank in nearest_first)
        # Open MPI ends a process that finds a connection broken, and calls no error handler.
        self._is_warning_due = "Open MPI" in library

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
            hosts = ", ".join(dict.fromkeys(self._hosts[rank] for rank in lost))
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
