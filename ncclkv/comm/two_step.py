"""Two-step sums: exchange parts, fold each slice in one fixed order, and send the sums on.

Every rank owns a slice of the elements: the owner receives its peers' parts of it, folds them in
the order given, and sends the result to the ranks that receive.  Each rank sends and receives twice
the array less one slice, the least that an allreduce can do.  One rank alone folds an element, so
all ranks get the same bits.  A short array saves the second step: every receiver folds all of it.
A sum to its `Owners` ends after the fold.

Messages between hosts, between nodes and between GPUs all go this way: each is a `Wire`.

**Sums in rank order.**  ``create(reproducible=True)`` gives every sum over ranks the bits of
NumPy's ``a0 + a1 + a2 + ...``, rank 0's array first.  An average is divided last.  The setting is
`Communicator.reproducible`; ``split`` and ``duplicate`` copy it.  Sums on one node, and sums by
messages from rank to rank, have this order always.  Sums in the memory of several nodes need an
ordered ``CrossNode`` (`ncclkv.comm.shm.hierarchical`), and sums between GPUs
`ncclkv.comm.nccl.messages`.

Arrays of one key are added before a push, in the order of their list.  For a maximum of several
NaNs, or of zeros of both signs, the result may be either.  The parts of ranks decide the order in
which squares are added for norms of whole keys.  So other buckets or nodes may change the last bits
of float64 weights, if the optimizer needs norms.

Without the setting the order of a sum on several nodes depends on the length and on the ranks of
each node.  The order of NCCL's sums depends on length, ranks, machine and version, and NCCL rounds
16-bit floats at each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ncclkv.comm.destinations import To
from ncclkv.comm.transport import Request, Steps
from ncclkv.comm.types import Apply, Buffer, Range
from ncclkv.comm.wire import Limits, Wire

LEAST = Limits(0, 1 << 62)
"""The limits with which a sum of any length takes both steps, and the array is not cut.

A sum with these limits sends the fewest bytes.
"""


class Exchange(NamedTuple):
    """The slices of one exchange: those of a chunk, or of the whole array.

    Attributes
    ----------
    slices : sequence of (int, int) or None
        The slice that each rank folds; None for a rank that folds nothing.
    sends_on : bool
        Whether the owners then send the sums of their slices to the ranks that receive.
    """

    slices: Sequence[Range | None]
    sends_on: bool


def slices(count: int, parts: int, unit: int = 1, start: int = 0) -> list[Range]:
    """Cut `count` elements from `start` on into ranges of nearly equal length.

    The ranges begin at multiples of `unit`, counted from `start`.

    Examples
    --------
    >>> slices(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    >>> slices(1000, 4, 64)
    [(0, 256), (256, 512), (512, 768), (768, 1000)]
    >>> slices(10, 2, start=100)
    [(100, 105), (105, 110)]
    """
    units = -(-count // unit)
    bounds = (min(units * part // parts * unit, count) for part in range(parts + 1))
    return list(pairwise(start + bound for bound in bounds))


def exchanges(count: int, itemsize: int, to: To, size: int, limits: Limits) -> Iterator[Exchange]:
    """Yield the exchanges of a sum of `count` elements over `size` ranks: at least one."""
    unit = max(1, limits.alignment // itemsize)
    if to.divided:
        parts = [to.part(rank, count) for rank in range(size)]
        longest = max(hi - lo for lo, hi in parts)
        chunks = max(1, -(-longest * itemsize * size // limits.chunk))
        cuts = [slices(hi - lo, chunks, unit, lo) for lo, hi in parts]
        for owned in zip(*cuts, strict=True):
            yield Exchange(owned, sends_on=False)
    elif count * itemsize <= limits.short:
        whole = (0, count)
        yield Exchange([whole if to.receives(rank) else None for rank in range(size)], False)
    else:
        for lo, hi in slices(count, -(-count * itemsize // limits.chunk), unit):
            yield Exchange(slices(hi - lo, size, unit, lo), True)


def scratch_count(count: int, itemsize: int, to: To, size: int, limits: Limits) -> int:
    """Return the largest count of scratch elements that a rank needs, if each adds one part."""
    found = exchanges(count, itemsize, to, size, limits)
    owned = (each for exchange in found for each in exchange.slices if each is not None)
    return max(hi - lo for lo, hi in owned) * (size - 1)


def wire_bytes(
    count: int, itemsize: int, to: To, rank: int, size: int, limits: Limits, parts: int = 1
) -> int:
    """Return the bytes that a rank sends in a sum to which each rank adds `parts` arrays."""
    sent = 0
    for owned, sends_on in exchanges(count, itemsize, to, size, limits):
        own = owned[rank] if sends_on else None
        for peer, wanted in enumerate(owned):
            if peer == rank:
                continue
            if wanted is not None:
                sent += parts * (wanted[1] - wanted[0])
            if own is not None and to.receives(peer):
                sent += own[1] - own[0]
    return sent * itemsize


class Sum(NamedTuple):
    """A sum of the parts of all ranks, as one rank makes it.

    Attributes
    ----------
    wire : Wire
    parts : sequence of ndarray, shape (n,)
        The arrays that this rank adds; `total` may be one of them.
    order : sequence of sequence of int
        For each rank, the positions of its parts in the fold.
    total : ndarray
        Receives the sum: n elements; in a sum to `Owners` only the elements of this rank.
    op : str
    to : To
    apply : callable, optional
        Called with each range of the sum as it arrives, on ranks that receive.
    """

    wire: Wire
    parts: Sequence[Buffer]
    order: Sequence[Sequence[int]]
    total: Buffer
    op: str
    to: To
    apply: Apply | None = None

    def steps(self) -> Steps:
        """Make the sum."""
        wire, to, part = self.wire, self.to, self.parts[0]
        first, _ = to.part(wire.rank, part.size)
        for owned, sends_on in exchanges(part.size, part.itemsize, to, wire.size, wire.limits):
            own = owned[wire.rank]
            out = None if own is None else self.total[own[0] - first : own[1] - first]
            # A peer's slice of `total` may be the memory that is being sent to it: the sums are
            # received only after all messages of the fold have left.
            yield from self._fold(owned, out)
            if sends_on and out is not None:
                yield from self._send_on(owned, out)
            else:
                self._update(own)

    def _fold(self, owned: Sequence[Range | None], out: Buffer | None) -> Steps:
        """Send each rank the parts of its slice, and fold those of this rank's slice into `out`."""
        wire, parts, order = self.wire, self.parts, self.order
        rank, dtype = wire.rank, parts[0].dtype
        mine = owned[rank]
        placed: dict[int, Buffer] = {}
        arriving: list[Buffer | None] = [None] * wire.size
        if mine is not None:
            lo, hi = mine
            placed.update(zip(order[rank], (part[lo:hi] for part in parts), strict=True))
            counts = [len(order[peer]) * (hi - lo) for peer in wire.peers]
            space = wire.scratch(sum(counts) * dtype.itemsize).view(dtype)
            stop = 0
            for peer, count in zip(wire.peers, counts, strict=True):
                start, stop = stop, stop + count
                arriving[peer] = rows = space[start:stop]
                placed.update(
                    zip(order[peer], rows.reshape(len(order[peer]), hi - lo), strict=True)
                )
        leaving = [
            None if wanted is None or peer == rank else _joined(parts, *wanted)
            for peer, wanted in enumerate(owned)
        ]
        yield from all_to_all(wire, leaving, arriving)
        if out is not None:
            wire.fold([placed[position] for position in sorted(placed)], out, self.op)

    def _send_on(self, owned: Sequence[Range | None], own: Buffer) -> Steps:
        """Send this rank's slice of the sum to the receivers, and receive the other slices."""
        wire, to = self.wire, self.to
        arriving: list[tuple[Range, Request]] = []
        with wire.group():
            for peer in wire.peers if to.receives(wire.rank) else ():
                theirs = owned[peer]
                if theirs is not None:
                    arriving.append((theirs, wire.receive(self.total[slice(*theirs)], peer)))
            leaving = [wire.send(own, peer) for peer in wire.peers if to.receives(peer)]
        for theirs, message in arriving:
            yield [message]
            self._update(theirs)
        yield leaving
        # Last: `apply` may change the sum in place, as an average over fewer ranks does.
        self._update(owned[wire.rank])

    def _update(self, summed: Range | None) -> None:
        """Call `apply` with a complete slice that has elements."""
        if self.apply is None or summed is None or summed[0] == summed[1]:
            return
        if self.to.receives(self.wire.rank):
            self.apply(*summed)


def all_to_all(
    wire: Wire, send: Sequence[Buffer | None], receive: Sequence[Buffer | None]
) -> Steps:
    """Send a buffer to each peer, and receive a buffer from each; None stands for no message."""
    with wire.group():
        pending = [
            wire.receive(into, peer) for peer in wire.peers if (into := receive[peer]) is not None
        ]
        pending += [
            wire.send(data, peer) for peer in wire.peers if (data := send[peer]) is not None
        ]
    yield pending


def _joined(parts: Sequence[Buffer], lo: int, hi: int) -> Buffer:
    """Return elements ``[lo, hi)`` of all parts in one array; a single part is not copied."""
    if len(parts) == 1:
        return parts[0][lo:hi]
    return np.concatenate([part[lo:hi] for part in parts])
