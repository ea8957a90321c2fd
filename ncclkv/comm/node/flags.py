"""How far every rank of a node is with each collective: numbers that only their owner writes.

A rank first writes what others will read, then its number; whoever sees the number sees what was
written before.  That is so on x86, whose processors keep the order of their stores and loads;
elsewhere it would need fences, which Python does not have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from ncclkv.comm.base import Buffer
from ncclkv.comm.transport import Pending
from ncclkv.errors import OrderMismatch

RING = 1024
"""Collectives of a node that may be under way at once."""

NOTE = struct.Struct("8q")
"""What a rank tells the others of its part in a collective."""

NBYTES = RING * (8 + NOTE.size)

_PHASES = 1 << 24

ENTERED = 1
"""The first phase of every collective: this rank's part can be read."""

DONE = _PHASES - 1
"""The last phase of every collective: this rank needs nothing of the others any more."""

FAILED = -1
"""What stands for a collective that has come to nothing."""


class Reached(Pending):
    """A rank that has to come to some point."""

    __slots__ = ("_flags", "_rank", "_slot", "_value", "peer")

    def __init__(self, rank: int, peer: int, flags: memoryview, slot: int, value: int) -> None:
        self.peer = peer
        self._rank = rank
        self._flags = flags
        self._slot = slot
        self._value = value

    def done(self) -> bool:
        reached: int = self._flags[self._slot]
        if reached == FAILED:
            raise OrderMismatch(
                f"rank {self._rank}: rank {self.peer} found that ranks of different nodes made "
                f"different calls"
            )
        return reached >= self._value

    def glance(self) -> bool:
        reached: int = self._flags[self._slot]
        return reached >= self._value or reached == FAILED


class Flags:
    """The flags of all ranks of a node.

    Parameters
    ----------
    pages : sequence of ndarray, shape (NBYTES,)
        The memory of each rank's, zero at first.
    ranks : sequence of int
        Their ranks.
    index : int
        Which of them is this one.
    tell : callable
        Called after a flag was written, for those who sleep.
    """

    def __init__(
        self,
        pages: Sequence[Buffer],
        ranks: Sequence[int],
        index: int,
        tell: Callable[[], None],
    ) -> None:
        self.index = index
        self._numbers = [page[: RING * 8].view(np.int64).data for page in pages]
        self._notes = [page[RING * 8 : NBYTES].data for page in pages]
        self._rank = ranks[index]
        self._own = self._numbers[index]
        self._others = [
            (rank, numbers)
            for rank, numbers in zip(ranks, self._numbers, strict=True)
            if numbers is not self._own
        ]
        self._tell = tell
        self._count = 0

    def turn(self) -> Turn:
        """The next collective; all ranks take their turns in one order."""
        self._count += 1
        return Turn(self, self._count)

    def write(self, slot: int, value: int) -> None:
        """Say how far this rank is."""
        self._own[slot] = value
        self._tell()

    def behind(self, slot: int, value: int) -> list[Pending]:
        """The other ranks that are not as far."""
        return [
            Reached(self._rank, rank, numbers, slot, value)
            for rank, numbers in self._others
            if numbers[slot] < value
        ]

    def unfinished(self, slot: int, value: int) -> list[Pending]:
        """All ranks that are not as far."""
        here = Reached(self._rank, self._rank, self._own, slot, value)
        return [*([] if here.done() else [here]), *self.behind(slot, value)]

    def note(self, slot: int, items: Sequence[int]) -> None:
        """Write this rank's note."""
        NOTE.pack_into(self._notes[self.index], slot * NOTE.size, *items)

    def notes(self, slot: int) -> list[bytes]:
        """Every rank's note."""
        lo = slot * NOTE.size
        return [bytes(notes[lo : lo + NOTE.size]) for notes in self._notes]


class Turn:
    """One collective, as this rank takes part in it.

    A phase is a number from 1 to `DONE` that only grows.

    Attributes
    ----------
    number : int
        Which collective of the node it is, from 1.
    """

    __slots__ = ("_base", "_flags", "_slot", "number")

    def __init__(self, flags: Flags, number: int) -> None:
        self._flags = flags
        self.number = number
        self._base = number * _PHASES
        self._slot = number % RING

    def free(self) -> list[Pending]:
        """The ranks that are not done with the collective that had this turn's place before."""
        if self.number <= RING:
            return []
        return self._flags.behind(self._slot, self._base - RING * _PHASES + DONE)

    def note(self, items: Sequence[int]) -> None:
        """Tell the others something, before the first phase."""
        self._flags.note(self._slot, items)

    def notes(self) -> list[bytes]:
        """What all ranks, which have come to the first phase, have told."""
        return self._flags.notes(self._slot)

    def reach(self, phase: int) -> None:
        """Say that this rank has come to a phase."""
        self._flags.write(self._slot, self._base + phase)

    def fail(self) -> None:
        """Say that ranks have made different calls."""
        self._flags.write(self._slot, FAILED)

    def behind(self, phase: int) -> list[Pending]:
        """The other ranks that have not come to a phase."""
        return self._flags.behind(self._slot, self._base + phase)

    def unfinished(self) -> list[Pending]:
        """The ranks that are not done, this one included."""
        return self._flags.unfinished(self._slot, self._base + DONE)

    def waiting_for(self, rank: int, phase: int) -> list[Pending]:
        """That rank, unless it has come to a phase."""
        return [each for each in self.behind(phase) if each.peer == rank]
