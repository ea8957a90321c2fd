"""`TopSum`: a sum of the largest elements of each rank, which are sent with their indices.

All payloads go to all ranks that decode elements.  Each adds them in the order of the senders, so
all ranks get the same bits.  A rank that decodes a part of an entry picks the indices of the part,
which are ascending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ncclkv.comm.programs.coded_sum import Decoded
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range, Wire
from ncclkv.compress.topk import TopK
from ncclkv.kernels.host.largest import add_largest


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
        Whether the result is the sum divided by the number of senders.
    """

    codec: TopK
    encode: Callable[[], object] | None
    payload: Buffer
    entries: Sequence[Range]
    receive: Buffer
    senders: frozenset[int]
    decoded: Decoded
    divides: bool

    def steps(self, wire: Wire, apply: Apply | None) -> Steps:
        """Make the sum."""
        if self.encode is not None:
            self.encode()
        if self.decoded.shared:
            wire.share_result()
        parts = yield from wire.read(self.payload, self.wanted)
        lo, hi = self.decoded.parts[wire.rank]
        if lo == hi:
            return
        out = self.receive[lo:hi]
        out[...] = 0
        for part in parts:
            if part is not None:
                self._add(part, lo, out)
        if self.divides:
            out /= np.float32(len(self.senders))
        if apply is not None:
            apply(lo, hi)

    def wanted(self, reader: int, owner: int) -> Range | None:
        """Return the bytes of an owner's payload that a reader needs: all, or none."""
        lo, hi = self.decoded.parts[reader]
        return None if lo == hi or owner not in self.senders else (0, self.payload.size)

    def sent(self, rank: int) -> int:
        """Return the bytes that other ranks read of a rank in a launch."""
        readers = range(len(self.decoded.parts))
        found = [self.wanted(reader, rank) for reader in readers if reader != rank]
        return sum(bounds[1] for bounds in found if bounds is not None)

    def _add(self, payload: Buffer, first: int, out: Buffer) -> None:
        """Add the elements of a sender to `out`, which begins at element `first`."""
        start, last = 0, first + out.size
        for lo, hi in self.entries:
            stop = start + self.codec.nbytes(hi - lo)
            part, start = payload[start:stop], stop
            if first <= lo and hi <= last:
                add_largest(part, out[lo - first : hi - first])
            elif lo < last and first < hi:
                _add_some(part, lo - first, out)


def _add_some(payload: Buffer, shift: int, out: Buffer) -> None:
    """Add those elements of a payload that lie in `out`, once `shift` is added to their indices."""
    indices, numbers = np.split(payload, 2)
    places = indices.view(np.int32) + shift
    lo, hi = np.searchsorted(places, (0, out.size))
    out[places[lo:hi]] += numbers.view(np.float32)[lo:hi]
