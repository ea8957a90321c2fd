"""`Allocator`: arrays cut out of a segment, and their offsets in it."""

from __future__ import annotations

import bisect
import mmap
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ncclkv.arrays.memory import address
from ncclkv.comm.shm.segment import Segment
from ncclkv.comm.types import ALIGNMENT, Buffer

_address = itemgetter(0)


class Offset(NamedTuple):
    """Position of an array in bytes: an extent of a segment, and the offset within the extent."""

    start: int
    length: int
    offset: int

    @property
    def at(self) -> int:
        """Return the position in the segment."""
        return self.start + self.offset


class Allocator:
    """Allocates arrays in the bytes ``[start, stop)`` of a segment.

    Parameters
    ----------
    segment : Segment
    start, stop : int
        Multiples of a page.
    reuse : bool
        Whether the bytes of freed arrays are allocated again.  If not, the same sizes in the same
        order have the same offsets on all ranks: so ranks find shared memory without a message.

    Attributes
    ----------
    size : int
        Bytes from `start` to `stop`.
    """

    def __init__(self, segment: Segment, start: int, stop: int, *, reuse: bool = True) -> None:
        self._segment = segment
        self._reuse = reuse
        self.size = max(stop - start, 0)
        self._next, self._stop = start, stop
        self._free: list[tuple[int, int, Buffer]] = []
        # The garbage collector appends, at any time: a deque needs no lock for that.
        self._returned: deque[tuple[int, int, Buffer]] = deque()
        self._extents: list[tuple[int, int, Buffer]] = []

    def take(self, nbytes: int) -> Buffer | None:
        """Allocate zeroed bytes, aligned to `ALIGNMENT`; None when no memory is left."""
        if nbytes == 0:
            return np.zeros(0, np.uint8)
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._collect()
        for index, (lo, length, extent) in enumerate(self._free):
            if length >= size:
                self._free[index] = (lo + size, length - size, extent)
                if self._reuse:  # new memory is zero, and peers may have written to it already
                    extent[lo : lo + nbytes] = 0
                return self._cut(lo, nbytes, size, extent)
        new = self._extend(size)
        if new is None:
            return None
        self._free.append((size, new.size - size, new))
        return self._cut(0, nbytes, size, new)

    @contextmanager
    def rolling_back(self) -> Iterator[None]:
        """Give back what a block took if it raises: the next arrays get the same offsets."""
        before = self._next, [*self._free], [*self._extents]
        try:
            yield
        except BaseException:
            self._next, self._free, self._extents = before
            raise

    def _cut(self, lo: int, nbytes: int, size: int, extent: Buffer) -> Buffer:
        """Return an array whose bytes are freed together with the array and all its views."""
        # Views of a view refer to the array that owns the buffer: a memoryview makes this array
        # the owner, so it lives as long as any view.
        array = np.frombuffer(memoryview(extent.data)[lo : lo + nbytes], np.uint8)
        if self._reuse:
            weakref.finalize(array, self._returned.append, (lo, size, extent)).atexit = False
        return array

    def _collect(self) -> None:
        """Return freed blocks to the free list and coalesce adjacent ones."""
        if not self._returned:
            return
        while self._returned:
            self._free.append(self._returned.popleft())
        order = sorted(self._free, key=lambda free: (address(free[2]), free[0]))
        self._free = []
        for lo, length, extent in order:
            last = self._free[-1] if self._free else None
            if last is not None and last[2] is extent and last[0] + last[1] == lo:
                self._free[-1] = (last[0], last[1] + length, extent)
            else:
                self._free.append((lo, length, extent))

    def _extend(self, size: int) -> Buffer | None:
        """Map more of the segment; None when too little is left."""
        page = mmap.ALLOCATIONGRANULARITY
        wanted = max(-(-size // page) * page, self._segment.extent_bytes)
        length = min(wanted, self._stop - self._next)
        if length < size:
            return None
        extent = self._segment.map(self._next, length)
        bisect.insort(self._extents, (address(extent), self._next, extent), key=_address)
        self._next += length
        return extent

    def offset_of(self, array: Buffer) -> Offset | None:
        """Return the offset of a contiguous array; None outside this allocator."""
        where = address(array)
        index = bisect.bisect(self._extents, where, key=_address) - 1
        if index < 0:
            return None
        begin, start, extent = self._extents[index]
        offset = where - begin
        if offset + array.nbytes > extent.size:
            return None
        return Offset(start, extent.size, offset)
