"""`OrderedSum`: a sum of arrays within a program, in the order of the ranks that send.

All ranks receive the sum, with the same bits on any layout.  A long array is summed in two steps:
each rank adds its slice, and then all ranks read these slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ncclkv.comm.programs.decoded import SHORT_BYTES
from ncclkv.comm.transport import Steps
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import ALIGNMENT, Buffer
from ncclkv.comm.wire import Range, Wire, read_of

UNIT = 16
"""Slices begin at multiples of so many elements."""

CHUNK_BYTES = 64 * 1024 * 1024
"""Longer arrays are summed chunk by chunk: a GPU needs memory for the slices of all ranks."""


def sums_of_chunks(
    array: Buffer, size: int, senders: frozenset[int]
) -> Iterator[tuple[Buffer, OrderedSum]]:
    """Yield the chunks of an array of any length, each with its sum."""
    count = CHUNK_BYTES // array.itemsize
    for lo in range(0, array.size, count):
        chunk = array[lo : lo + count]
        yield chunk, OrderedSum(chunk.size, chunk.itemsize, size, senders)


def scratch_of_sums(nbytes: int, size: int) -> int:
    """Return the most bytes that a rank reads of other ranks at once, in sums of up to `nbytes`."""
    return max(SHORT_BYTES, min(nbytes, CHUNK_BYTES) // size + UNIT * ALIGNMENT) * size


@dataclass(frozen=True)
class OrderedSum:
    """A sum of arrays of some ranks, as all ranks make it.

    Attributes
    ----------
    count : int
        The elements of the array.
    itemsize : int
    size : int
        The count of ranks.
    senders : frozenset of int
        The ranks whose arrays are in the sum.
    """

    count: int
    itemsize: int
    size: int
    senders: frozenset[int]

    def steps(self, wire: Wire, array: Buffer) -> Steps:
        """Set `array` to the sum.

        Other ranks may read the array until the next read of the program has returned, or until
        the program has ended: then it may be written again.
        """
        own = wire.published(array) if self._is_short else array
        owned = self._slices
        parts = yield from wire.read(own, self._sent)
        mine = array[slice(*owned[wire.rank])]
        if mine.size:
            wire.fold([part for part in parts if part is not None], mine, "sum")
        if not self._is_short:
            # A slice replaces what its owner has read, and what no other rank reads.
            yield from wire.read(mine, self._summed, [array[lo:hi] for lo, hi in owned])

    @property
    def _is_short(self) -> bool:
        """Return whether each rank adds all elements."""
        return self.count * self.itemsize <= SHORT_BYTES

    @cached_property
    def _slices(self) -> Sequence[Range]:
        """The elements that each rank adds."""
        if self._is_short:
            return [(0, self.count)] * self.size
        return slices(self.count, self.size, UNIT)

    def _sent(self, reader: int, owner: int) -> Range | None:
        """Return the elements of an owner's array that a reader adds."""
        return self._slices[reader] if owner in self.senders else None

    def _summed(self, reader: int, owner: int) -> Range | None:
        """Return the elements of an owner's slice that a reader reads: all of them."""
        lo, hi = self._slices[owner]
        return 0, hi - lo

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank."""
        reads = [self._sent] if self._is_short else [self._sent, self._summed]
        return sum(read_of(rank, self.size, read, self.itemsize) for read in reads)
