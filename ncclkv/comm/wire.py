"""`Wire`: messages and reads among all ranks; programs, the collectives that are made of them.

A program is a generator of exchanges over a `Wire`, which every rank runs.  The same program runs
on one rank, in the memory of a node, between nodes, and on the stream of a GPU.  Its main exchange
is `Wire.read`: every rank publishes an array, and reads ranges of the arrays of all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

from ncclkv.arrays.memory import address
from ncclkv.comm.transport import Request, Steps
from ncclkv.comm.types import ALIGNMENT, Apply, Buffer
from ncclkv.comm.types import Range as Range

Wants = Callable[[int, int], "Range | None"]
"""``wants(reader, owner)``: the elements of the owner's array that the reader reads, or None.

The function is the same on all ranks.
"""

Places = Sequence["Buffer | None"]
"""Arrays that receive the part of each rank; None for a part that needs no array."""

Read = Generator[Sequence[Request], None, list["Buffer | None"]]
"""The steps of `Wire.read`."""


ProgramSteps = Callable[["Wire", "Apply | None"], Steps]
"""``steps(wire, apply)``: one rank's part of a program; `apply` is that of the launch."""


class Limits(NamedTuple):
    """Lengths of arrays, in bytes, by which a kind of wire chooses the exchanges of a sum.

    Attributes
    ----------
    short : int
        Up to this length every receiver folds the whole array: a second step would cost more.
    chunk : int
        A longer array is cut into chunks, which are exchanged one after another.
    alignment : int
        Slices begin at multiples of so many bytes.
    """

    short: int
    chunk: int
    alignment: int = 1


@lru_cache(maxsize=64)
def others(rank: int, size: int) -> Sequence[int]:
    """Return the other ranks from the next one on: else all would send to rank 0 first."""
    return tuple((rank + step) % size for step in range(1, size))


class Wire(ABC):
    """Messages between all ranks, and the arithmetic of the memory that they are in.

    Parameters
    ----------
    rank, size : int
    limits : Limits
        The limits of this kind of wire.

    Attributes
    ----------
    rank, size, limits
        As the parameters.
    peers : sequence of int
        The other ranks, in the order of this rank's messages.
    """

    def __init__(self, rank: int, size: int, limits: Limits) -> None:
        self.rank, self.size, self.limits = rank, size, limits
        self.peers = others(rank, size)

    @property
    def nodes(self) -> Sequence[Sequence[int]] | None:
        """Return the ranks of each node; None if no rank reads the memory of a neighbour."""
        return None

    @abstractmethod
    def scratch(self, nbytes: int) -> Buffer:
        """Return memory that is valid until the next call of `scratch` or `read`."""

    def group(self) -> AbstractContextManager[None]:
        """Return a context whose messages are started together."""
        return nullcontext()

    @abstractmethod
    def send(self, data: Buffer, peer: int) -> Request:
        """Start to send `data`, which must not change until the request is done."""

    @abstractmethod
    def receive(self, into: Buffer, peer: int) -> Request:
        """Start to receive a message of exactly the length of `into`."""

    @abstractmethod
    def fold(self, parts: Sequence[Buffer], total: Buffer, op: str) -> None:
        """Reduce `parts`, in their order, into `total`, which may be one of them."""

    def copy(self, data: Buffer, into: Buffer) -> None:
        """Copy between arrays that this rank can read, unless they are the same memory."""
        if data.size and address(data) != address(into):
            into[...] = data

    def published(self, array: Buffer) -> Buffer:
        """Return what to publish in place of an array that this rank writes after its read.

        Other ranks may still read it then, so it is a copy.
        """
        copy: Buffer = array.copy()
        return copy

    def share_result(self) -> None:
        """Let the program end only when all ranks of this node have ended it.

        For programs whose ranks each write a part of one result in memory that their node shares.
        """
        return None

    def read(self, own: Buffer, wants: Wants, into: Places = ()) -> Read:
        """Publish an array, and read ranges of the arrays that all ranks publish.

        All ranks of a program make the same reads, in the same order.

        Parameters
        ----------
        own : ndarray, shape (n,)
            The lengths may differ between ranks, the dtype may not.  The array may be written again
            once the next read has returned, or after the program.
        wants : callable
            `Wants`.
        into : sequence of ndarray or None
            `Places`, each as long as what is read; by default there are none.

        Returns
        -------
        list of ndarray or None
            What this rank reads of each rank's array; None where `wants` gives None.  The arrays
            are valid until the next read, and must not be written.  Each is the place that `into`
            gives, a view of `own`, memory of a neighbour, or scratch memory.
        """
        parts = Parts(self, own, wants, into)
        yield parts.exchange(self.peers, self.peers, self.scratch)
        return parts.found


class Parts:
    """Parts that one rank reads in a `Wire.read`; its own part is found first.

    Parameters
    ----------
    wire, own, wants, into
        As for `Wire.read`.

    Attributes
    ----------
    found : list of ndarray or None
        The part of each rank's array, as far as it has been found.
    """

    def __init__(self, wire: Wire, own: Buffer, wants: Wants, into: Places) -> None:
        self._wire = wire
        self._own = own
        self._wants = wants
        self._into = into
        self.found: list[Buffer | None] = [None] * wire.size
        mine = self.wanted(wire.rank)
        if mine is not None:
            self.take(wire.rank, own[slice(*mine)])

    def wanted(self, owner: int) -> Range | None:
        """Return the elements that this rank reads of an owner's array."""
        return self._wants(self._wire.rank, owner)

    def place(self, owner: int) -> Buffer | None:
        """Return the array that receives an owner's part."""
        return self._into[owner] if self._into else None

    def take(self, owner: int, part: Buffer) -> None:
        """Take a part that this rank can read; copy it if it has another place."""
        place = self.place(owner)
        if place is not None:
            self._wire.copy(part, place)
        self.found[owner] = part if place is None else place

    def exchange(
        self, readers: Sequence[int], owners: Sequence[int], scratch: Callable[[int], Buffer]
    ) -> list[Request]:
        """Start the messages to some readers, and those from some owners.

        Empty parts need no message.  ``scratch(nbytes)`` returns memory for parts without a place.
        """
        wire, pending = self._wire, list[Request]()
        if not (readers or owners):
            return pending
        self._arrange(owners, scratch)
        with wire.group():
            for owner in owners:
                part = self.found[owner]
                if part is not None and part.size:
                    pending.append(wire.receive(part, owner))
            for reader in readers:
                lo, hi = self._wants(reader, wire.rank) or (0, 0)
                if lo < hi:
                    pending.append(wire.send(self._own[lo:hi], reader))
        return pending

    def _arrange(self, owners: Sequence[int], scratch: Callable[[int], Buffer]) -> None:
        """Set the arrays that receive the parts of some owners, before the parts are there."""
        dtype = self._own.dtype
        unplaced: dict[int, int] = {}
        for owner in owners:
            wanted, place = self.wanted(owner), self.place(owner)
            if wanted is not None and place is None:
                unplaced[owner] = (wanted[1] - wanted[0]) * dtype.itemsize
            elif wanted is not None:
                self.found[owner] = place
        total = sum(map(aligned, unplaced.values()))
        space, start = scratch(total) if total else self._own[:0].view("u1"), 0
        for owner, nbytes in unplaced.items():
            self.found[owner] = space[start : start + nbytes].view(dtype)
            # A kernel of a GPU may view each part as another dtype.
            start += aligned(nbytes)


def read_of(rank: int, size: int, wants: Wants, itemsize: int = 1) -> int:
    """Return the bytes that other ranks read of a rank in a `Wire.read`.

    Examples
    --------
    >>> read_of(0, 3, lambda reader, owner: (0, 10 * reader), itemsize=4)
    120
    """
    found = (wants(reader, rank) for reader in range(size) if reader != rank)
    return sum(bounds[1] - bounds[0] for bounds in found if bounds is not None) * itemsize


def read_by(rank: int, size: int, wants: Wants, itemsize: int = 1) -> int:
    """Return the bytes that a rank reads of other ranks in a `Wire.read`.

    Examples
    --------
    >>> read_by(2, 3, lambda reader, owner: (0, 10 * reader), itemsize=4)
    160
    """
    found = (wants(rank, owner) for owner in range(size) if owner != rank)
    return sum(bounds[1] - bounds[0] for bounds in found if bounds is not None) * itemsize


def aligned(nbytes: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Program(NamedTuple):
    """A collective that is a program, as `Communicator.program` takes it.

    Attributes
    ----------
    steps, what, nbytes, scratch, sent, kept
        As for `Communicator.program`.
    """

    steps: ProgramSteps
    what: str
    nbytes: int
    scratch: int
    sent: Callable[[], int]
    kept: Sequence[object]

    def __str__(self) -> str:
        return f"{self.what} of {self.nbytes} bytes" if self.nbytes else self.what
