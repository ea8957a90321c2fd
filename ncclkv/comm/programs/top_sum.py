"""`TopSum`: a sum of the largest elements of each rank, which are sent with their indices.

A rank reads the payloads of the entries that it decodes, and adds them in the order of the senders:
so all ranks get the same bits.  A rank that decodes a part of an entry picks the indices of the
part, which are ascending.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from ncclkv.comm.programs.decoded import Decoded
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range, Wire, read_by, read_of
from ncclkv.compress.coding import coding_of
from ncclkv.compress.topk import TopK
from ncclkv.kernels.base import Kernels
from ncclkv.kernels.host import HostKernels


@dataclass(frozen=True)
class TopSum:
    """A sum of the largest elements, as one rank makes it.

    Attributes
    ----------
    codec : TopK
    encode : callable or None
        Fills the payload, at the launch; None on a rank that sends nothing.
    payload : ndarray of uint8
        Those of all entries, one after another.
    entries : sequence of (int, int)
        The elements of each key; no other element is in the sum.
    receive : ndarray of float32, shape (n,)
        Receives the elements of the sum that this rank decodes.
    senders : frozenset of int
        The ranks that send.
    decoded : Decoded
    divides : bool
        Whether the result is the sum divided by the count of senders.
    rank : int
        This rank.
    kernels : Kernels
        The arithmetic in the memory of the arrays.
    """

    codec: TopK
    encode: Callable[[], object] | None
    payload: Buffer
    entries: Sequence[Range]
    receive: Buffer
    senders: frozenset[int]
    decoded: Decoded
    divides: bool
    rank: int
    kernels: Kernels = field(default_factory=HostKernels)

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sum."""
        if self.encode is not None:
            self.encode()
        if self.decoded.shared:
            wire.share_result()
        parts = yield from wire.read(self.payload, self.wanted)
        lo, hi = self.decoded.parts[self.rank]
        if lo == hi:
            return
        out = self.receive[lo:hi]
        self.kernels.fill(out, 0)
        for part in parts:
            if part is not None:
                self._add(part, out)
        if self.divides:
            self.kernels.divide(out, len(self.senders))
        if apply is not None:
            apply(lo, hi)

    @cached_property
    def _add(self) -> Callable[[Buffer, Buffer], None]:
        """The function that adds what a sender sent to the elements that this rank decodes."""
        lo, hi = self.decoded.parts[self.rank]
        entries = self.entries[slice(*self._entries_in(lo, hi))]
        return coding_of(self.kernels).adding(self.codec, entries, lo)

    @cached_property
    def _ends(self) -> list[int]:
        """The bytes of the payload up to the begin of each entry, and up to the end."""
        sizes = (self.codec.nbytes(hi - lo) for lo, hi in self.entries)
        return [*accumulate(sizes, initial=0)]

    def _entries_in(self, lo: int, hi: int) -> Range:
        """Return the indices of the entries that have elements in a range."""
        first = bisect_right(self.entries, lo, key=lambda entry: entry[1])
        return first, max(first, bisect_left(self.entries, hi, key=lambda entry: entry[0]))

    def wanted(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of an owner's payload that a reader needs: those of its entries."""
        first, end = self._entries_in(*self.decoded.parts[reader])
        if first == end or owner not in self.senders:
            return None
        return self._ends[first], self._ends[end]

    def scratch(self, rank: int) -> int:
        """Return the bytes that a rank reads of other ranks in a launch."""
        return read_by(rank, len(self.decoded.parts), self.wanted)

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank in a launch."""
        return read_of(rank, len(self.decoded.parts), self.wanted)
