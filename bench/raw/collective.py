"""What a collective has to say of itself to be measured."""

from __future__ import annotations

from abc import ABC, abstractmethod

from bench.job import Job
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer, Work

STEP = 3
"""Any step: the data of one check."""


class Collective(ABC):
    """One collective of float32.

    Attributes
    ----------
    name, redop : str
    root : int
        -1 where there is none.
    halves : tuple of bool
        Whether it is in place, in the order of the columns.
    """

    name: str
    redop: str = "none"
    root: int = -1
    halves: tuple[bool, ...] = (False, True)

    def count(self, nbytes: int, size: int) -> int:
        """Elements of the row whose nominal size is so many bytes: of the whole array."""
        return nbytes // 4

    def total(self, count: int, size: int) -> int:
        """Elements of the whole array, by those of the row."""
        return count

    @abstractmethod
    def factor(self, size: int) -> float:
        """Bus bandwidth over algorithm bandwidth."""

    @abstractmethod
    def views(self, first: Buffer, second: Buffer, in_place: bool, rank: int, size: int) -> Views:
        """What to send and to receive; both arrays are as long as the whole one."""

    @abstractmethod
    def launch(self, comm: Communicator, send: Buffer, receive: Buffer) -> Work:
        """Begin it."""

    @abstractmethod
    def fill(self, job: Job, send: Buffer) -> None:
        """Write this rank's data."""

    @abstractmethod
    def wrong(self, job: Job, receive: Buffer) -> int:
        """How many elements of the result are wrong on this rank."""


Views = tuple[Buffer, Buffer]


class Parts(Collective):
    """A collective in which every rank has one of equal parts; a row counts the part's elements.

    nccl-tests cuts parts to whole 16 bytes, so a row may be smaller than its nominal size.
    """

    def count(self, nbytes: int, size: int) -> int:
        return nbytes // 4 // size // 4 * 4

    def total(self, count: int, size: int) -> int:
        return count * size

    def factor(self, size: int) -> float:
        return (size - 1) / size
