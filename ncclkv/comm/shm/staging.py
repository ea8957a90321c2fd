"""Staging memory: copies of arrays that neighbours cannot map."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.shm.segment import MIB
from ncclkv.comm.shm.sequence import CollectiveSlot
from ncclkv.comm.transport import Request
from ncclkv.comm.types import Buffer

RINGS = ((16 * 1024, 16), (256 * 1024, 4))
"""Bytes of a place, and how many there are: the many do not push each other out of the cache."""

INLINE_BYTES = RINGS[-1][0]
"""Up to here arrays are copied whole."""

HALF_BYTES = 4 * MIB
"""Bytes of a longer array that are copied at a time."""

_HALVES = 2

NBYTES = sum(nbytes * count for nbytes, count in RINGS) + _HALVES * HALF_BYTES
"""Bytes of a rank's staging memory."""


class SlotRing:
    """Slots for whole copies, which collectives take in turn.

    Parameters
    ----------
    pages : sequence of ndarray
        The memory of each rank's places.
    nbytes : int
        Of a place.
    """

    def __init__(self, pages: Sequence[Buffer], nbytes: int) -> None:
        self.nbytes = nbytes
        self._pages = pages
        self._holders: list[CollectiveSlot | None] = [None] * (pages[0].size // nbytes)
        self._taken = 0

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self._holders)

    def take(self, turn: CollectiveSlot) -> tuple[int, CollectiveSlot | None]:
        """The next place, and whose it was: some may still read what was there."""
        slot = self._taken % len(self._holders)
        self._taken += 1
        before, self._holders[slot] = self._holders[slot], turn
        return slot, before

    def copies(self, slot: int, nbytes: int) -> list[Buffer]:
        """Every rank's copy."""
        lo = slot * self.nbytes
        return [page[lo : lo + nbytes] for page in self._pages]


class DoubleBuffer:
    """Two places for chunks, the one filled while the other is read; one collective at a time.

    Parameters
    ----------
    pages : sequence of ndarray, shape (2 * HALF_BYTES,)
        The memory of each rank's halves.
    rank : int
        This rank.
    """

    def __init__(self, pages: Sequence[Buffer], rank: int) -> None:
        self._pages = pages
        self._rank = rank
        self._holder: CollectiveSlot | None = None
        self._open: list[int] = []

    def open(self, turn: CollectiveSlot) -> None:
        """Note a collective that may need this rank's halves."""
        self._open.append(turn.number)

    def decide(self, turn: CollectiveSlot) -> None:
        """Note that a collective has them, or needs none."""
        self._open.remove(turn.number)

    def undecided(self, turn: CollectiveSlot) -> list[Request]:
        """Return a request that lasts while an earlier collective may need the halves.

        All ranks acquire the buffers in launch order, so no deadlock is possible.
        """
        return [] if self.first(turn) else [_First(self, turn, self._rank)]

    def first(self, turn: CollectiveSlot) -> bool:
        """Return whether no earlier collective may need the halves."""
        return self._open[0] == turn.number

    def take(self, turn: CollectiveSlot) -> Sequence[Request]:
        """Take the halves; return the requests of the ranks that may still read their content."""
        before, self._holder = self._holder, turn
        return [] if before is None else before.unfinished()

    def copy(self, index: int, number: int, nbytes: int) -> Buffer:
        """Return a rank's copy of the chunk of that number."""
        lo = number % _HALVES * HALF_BYTES
        return self._pages[index][lo : lo + nbytes]


class _First(Request):
    """The moment when a collective is the first that may need this rank's halves."""

    def __init__(self, halves: DoubleBuffer, turn: CollectiveSlot, rank: int) -> None:
        self.peer = rank
        self._halves = halves
        self._turn = turn

    def done(self) -> bool:
        return self._halves.first(self._turn)
