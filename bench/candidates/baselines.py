"""Baselines: a library's sum over ranks, and plain copies."""

from __future__ import annotations

from collections.abc import Sequence

from bench.data import Expected
from bench.libraries.base import Library
from bench.rounds import Candidate, Marks
from bench.workload import Workload
from ncclkv.comm.types import Buffer


def cut(flat: Buffer, nbytes: int) -> list[Buffer]:
    """Cut `flat` into chunks of at most `nbytes` bytes."""
    step = max(1, nbytes // flat.itemsize)
    return [flat[lo : lo + step] for lo in range(0, flat.size, step)]


class Flat(Candidate):
    """In-place sum of a flat array, in chunks that are all launched before the first wait."""

    def __init__(
        self,
        work: Workload,
        library: Library,
        chunks: Sequence[Buffer],
        views: Sequence[Buffer],
        expected: Expected,
        name: str,
    ) -> None:
        self.name = name
        self.work = work
        self.library = library
        self.chunks = chunks
        self.views = views
        self.expected = expected

    def prepare(self, step: int) -> None:
        self.work.fill(step, self.views)
        self.expected.advance(step)

    def run(self, mark: Marks) -> None:
        waits = [self.library.start(chunk, chunk) for chunk in self.chunks]
        for wait in waits:
            wait()

    def wrong(self) -> int:
        return self.work.wrong(self.views, self.expected)


class Bucketed(Candidate):
    """Arrays copied into buckets, summed there and copied out; full buckets are launched.

    Parameters
    ----------
    slots : list of ndarray
        The slot of every key in a flat array.
    buckets : list of (int, int)
        Ranges of keys.
    chunks : list of ndarray
        The same ranges of the flat array.
    """

    def __init__(
        self,
        work: Workload,
        library: Library,
        slots: Sequence[Buffer],
        buckets: Sequence[tuple[int, int]],
        chunks: Sequence[Buffer],
        expected: Expected,
        name: str,
    ) -> None:
        self.name = name
        self.work = work
        self.library = library
        self.slots = slots
        self.buckets = buckets
        self.chunks = chunks
        self.expected = expected

    @property
    def into(self) -> Sequence[Buffer]:
        """Arrays that receive the sums."""
        return self.work.outs

    def prepare(self, step: int) -> None:
        self.work.fill(step)
        self.work.overwrite_outs()
        self.expected.advance(step)

    def run(self, mark: Marks) -> None:
        waits = []
        for (first, last), chunk in zip(self.buckets, self.chunks, strict=True):
            self.library.copy(self.slots[first:last], self.work.gradients[first:last])
            waits.append(self.library.start(chunk, chunk))
        mark("push")
        for (first, last), wait in zip(self.buckets, waits, strict=True):
            wait()
            self.library.copy(self.into[first:last], self.slots[first:last])
        mark("pull")

    def wrong(self) -> int:
        return self.work.wrong(self.work.outs, self.expected)


class Copies(Candidate):
    """Copy of every array, by all ranks at once: the bandwidth of memory."""

    name = "copy of the same bytes"

    def __init__(self, work: Workload) -> None:
        self.work = work

    def prepare(self, step: int) -> None:
        self.work.fill(step)
        self.work.overwrite_outs()

    def run(self, mark: Marks) -> None:
        for out, gradient in zip(self.work.outs, self.work.gradients, strict=True):
            out[...] = gradient

    def wrong(self) -> int:
        pairs = zip(self.work.outs, self.work.gradients, strict=True)
        return sum(int((out != gradient).sum()) for out, gradient in pairs)
