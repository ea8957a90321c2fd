"""Collectives of float32 in the form in which nccl-tests measures them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from bench.data import addend, total
from bench.job import Job
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer, Work

STEP = 3
"""Step whose data a check uses; any does."""

Views = tuple[Buffer, Buffer]


class Collective(ABC):
    """Base class: one collective of float32.

    Attributes
    ----------
    name, redop : str
    root : int
        -1 for collectives without a root.
    halves : tuple of bool
        For each half of the table's columns, whether it is in place.
    """

    name: str
    redop: str = "none"
    root: int = -1
    halves: tuple[bool, ...] = (False, True)

    def count(self, nbytes: int, size: int) -> int:
        """Return the elements of the row whose nominal size is `nbytes` of the whole array."""
        return nbytes // 4

    def total(self, count: int, size: int) -> int:
        """Return the elements of the whole array for a row of `count` elements."""
        return count

    @abstractmethod
    def factor(self, size: int) -> float:
        """Return bus bandwidth divided by algorithm bandwidth."""

    @abstractmethod
    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        """Return the arrays to send and to receive, cut out of two arrays of full length."""

    @abstractmethod
    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        """Launch the collective."""

    @abstractmethod
    def fill(self, job: Job, send: Buffer) -> None:
        """Write this rank's data."""

    @abstractmethod
    def wrong(self, job: Job, receive: Buffer) -> int:
        """Return the count of wrong elements in this rank's result."""


class EqualParts(Collective):
    """Base class: every rank has one of equal parts, and a row counts the part's elements.

    nccl-tests cuts parts to multiples of 16 bytes, so a row may be smaller than its nominal size.
    """

    def count(self, nbytes: int, size: int) -> int:
        return nbytes // 4 // size // 4 * 4

    def total(self, count: int, size: int) -> int:
        return count * size

    def factor(self, size: int) -> float:
        return (size - 1) / size


class Allreduce(Collective):
    """Every rank receives the sum over all ranks."""

    name = "all_reduce"
    redop = "sum"

    def factor(self, size: int) -> float:
        return 2 * (size - 1) / size

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        return first, first if in_place else second

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.allreduce(send, receive)

    def fill(self, job: Job, send: Buffer) -> None:
        job.pattern.fill(send, addend(job.comm.rank, STEP))

    def wrong(self, job: Job, receive: Buffer) -> int:
        return job.pattern.wrong(receive, job.comm.size, total(job.comm.size, STEP))


class Broadcast(Collective):
    """Every rank receives the root's array; the communicator's broadcast is in place."""

    name = "broadcast"
    root = 0
    halves = (True,)

    def factor(self, size: int) -> float:
        return 1.0

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        return first, first

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.broadcast(receive, self.root)

    def fill(self, job: Job, send: Buffer) -> None:
        if job.comm.rank == self.root:
            job.pattern.fill(send, addend(self.root, STEP))
        else:
            send.fill(np.nan)

    def wrong(self, job: Job, receive: Buffer) -> int:
        return job.pattern.wrong(receive, 1, addend(self.root, STEP))


class ReduceScatter(EqualParts):
    """Every rank receives one part of the sum over all ranks."""

    name = "reduce_scatter"
    redop = "sum"

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        part = first.size // size
        whole = first if in_place else second
        return first, whole[rank * part : (rank + 1) * part]

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.reduce_scatter(send, receive)

    def fill(self, job: Job, send: Buffer) -> None:
        job.pattern.fill(send, addend(job.comm.rank, STEP))

    def wrong(self, job: Job, receive: Buffer) -> int:
        size, start = job.comm.size, job.comm.rank * receive.size
        return job.pattern.wrong(receive, size, total(size, STEP), start)


class Allgather(EqualParts):
    """Every rank receives the parts of all ranks, in rank order."""

    name = "all_gather"

    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        part = first.size // size
        whole = second if in_place else first
        return whole[rank * part : (rank + 1) * part], second

    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        return comm.allgather(send, receive)

    def fill(self, job: Job, send: Buffer) -> None:
        job.pattern.fill(send, addend(job.comm.rank, STEP))

    def wrong(self, job: Job, receive: Buffer) -> int:
        part = receive.size // job.comm.size
        return sum(
            job.pattern.wrong(receive[rank * part : (rank + 1) * part], 1, addend(rank, STEP))
            for rank in range(job.comm.size)
        )


COLLECTIVES: tuple[Collective, ...] = (Allreduce(), Broadcast(), ReduceScatter(), Allgather())
