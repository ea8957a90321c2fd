"""`TopSum`: a sum of the largest elements of each rank, which are sent with their indices.

A rank reads the payloads of the keys that it decodes, and adds them in the order of the senders:
so all ranks get the same bits.  A rank that decodes a part of a key picks the indices of the part,
which are ascending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ncclkv.comm.programs.decoded import Decoded
from ncclkv.comm.programs.top_decoding import TopDecoding
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range, Wire, read_by, read_of


@dataclass(frozen=True)
class TopSum:
    """A sum of the largest elements, as one rank makes it.

    Attributes
    ----------
    encode : callable or None
        Fills the payload, at the launch; None on a rank that sends nothing.
    payload : ndarray of uint8
        Those of all keys, one after another; no other element is in the sum.
    result : TopDecoding
        Writes the elements that this rank decodes.
    senders : frozenset of int
        The ranks that send.
    decoded : Decoded
    """

    encode: Callable[[], object] | None
    payload: Buffer
    result: TopDecoding
    senders: frozenset[int]
    decoded: Decoded

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sum."""
        if self.encode is not None:
            self.encode()
        if self.decoded.shared:
            wire.share_result()
        parts = yield from wire.read(self.payload, self.wanted)
        lo, hi = bounds = self.decoded.parts[wire.rank]
        if lo < hi:
            self.result.write([part for part in parts if part is not None], bounds, apply)

    def wanted(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of an owner's payload that a reader needs: those of its keys."""
        first, end = self.result.extents.codes(self.decoded.parts[reader])
        return None if first == end or owner not in self.senders else (first, end)

    def scratch(self, rank: int) -> int:
        """Return the bytes that a rank reads of other ranks in a launch."""
        return read_by(rank, len(self.decoded.parts), self.wanted)

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank in a launch."""
        return read_of(rank, len(self.decoded.parts), self.wanted)
