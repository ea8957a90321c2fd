"""What is known of the processes of a communicator's other ranks without MPI."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ncclkv.comm.host.liveness import Endpoint, liveness
from ncclkv.comm.processes import Process, namespace, process

if TYPE_CHECKING:
    from mpi4py import MPI


class Peers:
    """The other ranks: their processes on this machine, their ports on others.

    Collective over the ranks of both communicators.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    machine : mpi4py.MPI.Comm
        Of the ranks of `comm` that are on this machine.

    Attributes
    ----------
    failed : set of int
        The ranks that MPI has reported an error about.
    """

    def __init__(self, comm: MPI.Comm, machine: MPI.Comm) -> None:
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
        endpoints = [Endpoint(*each) for each in comm.allgather(tuple(self._liveness.here))]
        others = [rank for rank, *_ in near]
        self._far = {rank: each for rank, each in enumerate(endpoints) if rank not in others}
        # From this rank on, so that no port is asked by more ranks than any other.
        ahead = sorted(self._far, key=lambda rank: (rank - here) % len(endpoints))
        self._liveness.watch(self._far[rank] for rank in ahead)

    def has_ended(self, rank: int) -> bool:
        """Tell whether the process of a rank is known to have ended."""
        if rank in self._near:
            return self._near[rank].has_ended()
        return rank in self._far and self._liveness.has_ended(self._far[rank])

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
