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
        Of the ranks of `comm` that are on this machine.
    library : str
        The MPI library's name.

    Attributes
    ----------
    failed : set of int
        The ranks that MPI has reported an error about.
    """

    def __init__(self, comm: MPI.Comm, machine: MPI.Comm, library: str) -> None:
        self._to_foretell = False
        self.failed: set[int] = set()
        self._warned: set[int] = set()
        self._far: dict[int, Endpoint] = {}
        here = comm.Get_rank()
        near = machine.allgather((here, os.getpid(), namespace()))
        self._near: dict[int, Process] = {
            rank: process(number)
            for rank, number, space in near
            if rank != here and space and space == namespace()
        }
        if len(near) == comm.Get_size():
            return
        self._liveness = liveness()
        told = comm.allgather((socket.gethostname(), *self._liveness.here))
        self._hosts = [host for host, *_ in told]
        endpoints = [Endpoint(*each) for _, *each in told]
        others = [rank for rank, *_ in near]
        self._far = {rank: each for rank, each in enumerate(endpoints) if rank not in others}
        # From this rank on, so that no port is asked by more ranks than any other.
        ahead = sorted(self._far, key=lambda rank: (rank - here) % len(endpoints))
        self._liveness.watch(self._far[rank] for rank in ahead)
        # Open MPI ends a process that finds a connection broken, and asks no error handler.
        self._to_foretell = "Open MPI" in library

    def has_ended(self, rank: int) -> bool:
        """Tell whether the process of a rank is known to have ended."""
        if rank in self._near:
            return self._near[rank].has_ended()
        return rank in self._far and self._liveness.has_ended(self._far[rank])

    def foretell(self) -> None:
        """Name a rank that has ended, where MPI is about to end this process because of it.

        Whoever calls MPI calls this before.
        """
        if not self._to_foretell or not (ended := self._liveness.ended()):
            return
        self._to_foretell = False
        lost = [rank for rank, endpoint in self._far.items() if endpoint in ended]
        if lost:
            hosts = ", ".join(dict.fromkeys(self._hosts[rank] for rank in lost))
            sys.stderr.write(
                f"{abort.here()} has lost {format_ranks(lost)} on {hosts}, which ended without "
                f"a word; Open MPI may now end this rank, too\n"
            )
            sys.stderr.flush()

    def may_tell(self, rank: int, *, troubled: bool) -> bool:
        """Tell whether a notice may be sent to a rank.

        Once ranks are known to be lost, one whose end would not be seen gets a single notice.
        """
        if rank in self.failed or self.has_ended(rank):
            return False
        if rank not in self._far or self._liveness.watches(self._far[rank]):
            return True
        if not (troubled or self.failed):
            return True
        first = rank not in self._warned
        self._warned.add(rank)
        return first
