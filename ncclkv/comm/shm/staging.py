"""Staging memory: copies of arrays that neighbours cannot map."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.shm.segment import MIB
from ncclkv.comm.shm.sequence import CollectiveSlot
from ncclkv.comm.transport import LocalRequest, Steps
from ncclkv.comm.types import Buffer

RINGS = ((16 * 1024, 16), (256 * 1024, 4))
"""Bytes of a slot, and count of slots; more slots would push each other out of the cache."""

INLINE_BYTES = RINGS[-1][0]
"""Arrays of at most this size are copied whole."""

HALF_BYTES = 4 * MIB
"""Bytes of a chunk, in which a longer array is copied: half of a double buffer."""

_HALVES = 2

NBYTES = sum(nbytes * count for nbytes, count in RINGS) + _HALVES * HALF_BYTES
"""Bytes of a rank's staging memory."""


class SlotRing:
    """Slots for whole copies; each collective takes the next slot.

    Parameters
    ----------
    pages : sequence of ndarray
        The memory of each rank's slots.
    nbytes : int
        Size of a slot.
    """

    def __init__(self, pages: Sequence[Buffer], nbytes: int) -> None:
        self.nbytes = nbytes
        self._pages = pages
        self._holders: list[CollectiveSlot | None] = [None] * (pages[0].size // nbytes)
        self._taken = 0

    def __len__(self) -> int:
        """Return the count of slots."""
        return len(self._holders)

    def take(self, slot: CollectiveSlot) -> tuple[int, CollectiveSlot | None]:
        """Take the next slot of the ring.

        Returns
        -------
        position : int
            Its index in the ring.
        previous : CollectiveSlot or None
            The collective that had it before; ranks may still read that collective's copies.
        """
        position = self._taken % len(self._holders)
        self._taken += 1
        previous, self._holders[position] = self._holders[position], slot
        return position, previous

    def copies(self, position: int, nbytes: int) -> list[Buffer]:
        """Return the copies of all ranks."""
        lo = position * self.nbytes
        return [page[lo : lo + nbytes] for page in self._pages]


class DoubleBuffer:
    """Two halves for chunks: one is filled while the other is read; one collective at a time.

    All ranks acquire the halves in launch order, so no deadlock is possible.

    Parameters
    ----------
    pages : sequence of ndarray, shape (2 * HALF_BYTES,)
        The memory of each rank.
    rank : int
        This rank.
    """

    def __init__(self, pages: Sequence[Buffer], rank: int) -> None:
        self._pages = pages
        self._rank = rank
        self._holder: CollectiveSlot | None = None
        self._queue: list[int] = []

    def enqueue(self, slot: CollectiveSlot) -> None:
        """Append a collective that may need this rank's halves to the queue."""
        self._queue.append(slot.index)

    def acquire(self, slot: CollectiveSlot) -> Steps:
        """Take the halves, after the earlier collectives and once no rank reads their content."""
        yield [LocalRequest(self._rank, lambda: self._queue[0] == slot.index)]
        previous, self._holder = self._holder, slot
        yield [] if previous is None else previous.unfinished()
        self.dequeue(slot)

    def dequeue(self, slot: CollectiveSlot) -> None:
        """Remove a collective that has the halves, or needs none."""
        self._queue.remove(slot.index)

    def copy(self, index: int, chunk_index: int, nbytes: int) -> Buffer:
        """Return the copy of the rank and the chunk of these indices."""
        lo = chunk_index % _HALVES * HALF_BYTES
        return self._pages[index][lo : lo + nbytes]
