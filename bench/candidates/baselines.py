"""The same work by a library's sum over ranks, and by plain copies."""

from __future__ import annotations

from collections.abc import Sequence

from bench.data import Expected
from bench.libraries.base import Peer
from bench.rounds import Candidate, Marks
from bench.workload import Workload
from ncclkv.comm.types import Buffer


def cut(flat: Buffer, nbytes: int) -> list[Buffer]:
    """`flat` in pieces of up to so many bytes."""
    step = max(1, nbytes // flat.itemsize)
    return [flat[lo : lo + step] for lo in range(0, flat.size, step)]


class Flat(Candidate):
    """A sum in place of one flat array, in pieces that are begun before the first is waited for."""

    def __init__(
        self,
        work: Workload,
        peer: Peer,
        pieces: Sequence[Buffer],
        views: Sequence[Buffer],
        expected: Expected,
        name: str,
    ) -> None:
        self.name = name
        self.work = work
        self.peer = peer
        self.pieces = pieces
        self.views = views
        self.expected = expected

    def prepare(self, step: int) -> None:
        self.work.fill(step, self.views)
        self.expected.advance(step)

    def run(self, mark: Marks) -> None:
        waits = [self.peer.start(piece, piece) for piece in self.pieces]
        for wait in waits:
            wait()

    def wrong(self) -> int:
        return self.work.wrong(self.views, self.expected)


class Bucketed(Candidate):
    """Arrays copied into buckets, summed there, and copied out; a bucket is begun when it is full.

    Parameters
    ----------
    slots : list of ndarray
        The place of every key in a flat array.
    buckets : list of (int, int)
        Ranges of keys.
    pieces : list of ndarray
        The same ranges of the flat array.
    """

    def __init__(
        self,
        work: Workload,
        peer: Peer,
        slots: Sequence[Buffer],
        buckets: Sequence[tuple[int, int]],
        pieces: Sequence[Buffer],
        expected: Expected,
        name: str,
    ) -> None:
        self.name = name
        self.work = work
        self.peer = peer
        self.slots = slots
        self.buckets = buckets
        self.pieces = pieces
        self.expected = expected

    @property
    def into(self) -> Sequence[Buffer]:
        """Where the sums are copied to."""
        return self.work.outs

    def prepare(self, step: int) -> None:
        self.work.fill(step)
        self.work.spoil()
        self.expected.advance(step)

    def run(self, mark: Marks) -> None:
        waits = []
        for (first, last), piece in zip(self.buckets, self.pieces, strict=True):
            self.peer.copy(self.slots[first:last], self.work.gradients[first:last])
            waits.append(self.peer.start(piece, piece))
        mark("push")
        for (first, last), wait in zip(self.buckets, waits, strict=True):
            wait()
            self.peer.copy(self.into[first:last], self.slots[first:last])
        mark("pull")

    def wrong(self) -> int:
        return self.work.wrong(self.work.outs, self.expected)


class Copies(Candidate):
    """Every array copied once, by all ranks at a time: what the memory can do."""

    name = "copy of the same bytes"

    def __init__(self, work: Workload) -> None:
        self.work = work

    def prepare(self, step: int) -> None:
        self.work.fill(step)
        self.work.spoil()

    def run(self, mark: Marks) -> None:
        for out, gradient in zip(self.work.outs, self.work.gradients, strict=True):
            out[...] = gradient

    def wrong(self) -> int:
        pairs = zip(self.work.outs, self.work.gradients, strict=True)
        return sum(int((out != gradient).sum()) for out, gradient in pairs)
