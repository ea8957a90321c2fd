"""reduce_scatter and barrier in the shared memory of a node: all ranks read all arrays.

An array that neighbours can map is read in place, and does not change until all ranks are done.
Any other array is copied in chunks, each before the phase after which peers read it.  A rank that
reaches a phase has read the chunk of the phase before, so a double buffer is enough.

A reduce_scatter reduces this rank's rows, and a barrier is the first phase alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from ncclkv.comm.destinations import Owners
from ncclkv.comm.shm import header
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.hierarchical import CrossNode, refusing
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED, CollectiveSlot
from ncclkv.comm.shm.staging import HALF_BYTES, INLINE_BYTES
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Apply, Buffer
from ncclkv.kernels.host import HostKernels

Rows = Sequence[tuple[int, int]]
"""Ranges of an array that follow one another; the last ends with the array."""

Consume = Callable[[int, list[Buffer]], Steps]
"""``consume(lo, parts)`` gets elements of the rows that this rank reads, from `lo` on.

`parts` holds one array for each such row of each rank.
"""


def enter(
    node: Node,
    slot: CollectiveSlot,
    call: header.CollectiveHeader,
    offset: Offset | None,
) -> Steps:
    """Publish a call and the offset of its array; compare the peers' calls with it."""
    slot.write_header(header.write(call, offset, None))
    slot.publish(ENTERED)
    yield slot.stragglers(ENTERED)
    header.check_all(call, node, slot.headers())


@dataclass
class PeerReads:
    """A collective in which every rank reads the arrays of all, as one rank carries it out.

    Parameters
    ----------
    node : Node
    call : CollectiveHeader
    own : ndarray, shape (n,)
        This rank's array, contiguous.
    rows : Rows
        The rows of each array, each read by one rank of the node.
    reads : sequence of int
        The indices of the rows that this rank reads of every array.  `consume` may write to these
        rows of `own`, and to no other row.
    consume : callable
        `Consume`; called for one range of elements after another, to the end of the longest row.
    """

    node: Node
    call: header.CollectiveHeader
    own: Buffer
    rows: Rows
    reads: Sequence[int]
    consume: Consume

    def __post_init__(self) -> None:
        self._longest = max(hi - lo for lo, hi in self.rows)
        self._column_bytes = len(self.rows) * self.own.itemsize
        self.slot = self.node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        if self._longest * self._column_bytes <= INLINE_BYTES:
            return self._inline()
        self.node.double_buffer.enqueue(self.slot)
        return self._long()

    def _inline(self) -> Steps:
        """Copy short arrays whole."""
        node, slot, nbytes = self.node, self.slot, self._longest * self._column_bytes
        ring = node.ring(nbytes)
        position, previous = ring.take(slot)
        yield [*slot.until_free(), *(previous.unfinished() if previous is not None else ())]
        copies = ring.copies(position, nbytes)
        self._copy(copies[node.index], 0, self._longest)
        yield from enter(node, slot, self.call, None)
        yield from self.consume(0, self._parts([None] * len(copies), copies, 0, self._longest))
        slot.publish(DONE)

    def _long(self) -> Steps:
        """Read mapped arrays in place, and other arrays from staging memory, chunk by chunk."""
        node, slot, step = self.node, self.slot, HALF_BYTES // self._column_bytes
        yield slot.until_free()
        offset = node.offset_of(self.own)
        if offset is None:
            yield from node.double_buffer.acquire(slot)
            self._copy(self._chunks(0)[node.index], 0, step)
        else:
            node.double_buffer.dequeue(slot)
        yield from enter(node, slot, self.call, offset)
        offsets = [header.offsets(text)[0] for text in slot.headers()]
        wholes = [self._whole(index, where) for index, where in enumerate(offsets)]
        if None not in offsets and len(node.nodes) == 1:
            step = self._longest
        for index, lo in enumerate(range(0, self._longest, step)):
            if index:
                if offset is None:
                    self._copy(self._chunks(index)[node.index], lo, step)
                slot.publish(ENTERED + index)
                yield slot.stragglers(ENTERED + index)
            yield from self.consume(lo, self._parts(wholes, self._chunks(index), lo, step))
        slot.publish(DONE)
        if offset is not None:
            yield slot.stragglers(DONE)

    def _chunks(self, chunk_index: int) -> list[Buffer]:
        """Return every rank's copy of a chunk."""
        ranks, halves = range(len(self.node.ranks)), self.node.double_buffer
        return [halves.copy(index, chunk_index, HALF_BYTES) for index in ranks]

    def _whole(self, index: int, offset: Offset | None) -> Buffer | None:
        """Return a rank's mapped array; None when that rank copies its array in chunks."""
        if offset is None:
            return None
        nbytes = self.rows[-1][1] * self.own.itemsize
        return self.node.view(index, offset, nbytes).view(self.own.dtype)

    def _copy(self, chunk: Buffer, lo: int, step: int) -> None:
        """Copy elements ``[lo, lo + step)`` of each row that peers read, to staging memory."""
        copy = chunk.view(self.own.dtype)
        for row, (first, stop) in enumerate(self.rows):
            if row not in self.reads:
                part = self.own[first + lo : min(first + lo + step, stop)]
                copy[row * step : row * step + part.size] = part

    def _parts(
        self, wholes: Sequence[Buffer | None], chunks: Sequence[Buffer], lo: int, step: int
    ) -> list[Buffer]:
        """Return elements ``[lo, lo + step)`` of the rows that this rank reads, array by array."""
        parts = []
        for index, (whole, chunk) in enumerate(zip(wholes, chunks, strict=True)):
            staged = whole is None and index != self.node.index
            source = chunk.view(self.own.dtype) if staged else self.own if whole is None else whole
            for row in self.reads:
                first, stop = self.rows[row]
                begin = row * step if staged else first + lo
                parts.append(source[begin : begin + max(0, min(step, stop - first - lo))])
        return parts


def reduce_scatter(
    node: Node,
    call: header.CollectiveHeader,
    send: Buffer,
    own: Buffer,
    bounds: Sequence[int],
    apply: Apply | None,
    cross: CrossNode | None = None,
) -> Steps:
    """Reduce this rank's part, in rank order, into `own`, which may be that part of `send`.

    On several nodes `cross` is given: the ranks with the same index on each node reduce their parts
    on their node, and then exchange the sums.
    """
    ranks = [node.rank] if cross is None else cross.ranks
    first, reduce = bounds[node.rank], HostKernels().reduce

    def consume(lo: int, arrays: list[Buffer]) -> Steps:
        mine = ranks.index(node.rank)
        hi = lo + arrays[mine].size
        block = own[lo:hi]
        if cross is None:
            reduce(arrays, block, call.op)
        else:
            ends = [0, *accumulate(array.size for array in arrays[: len(ranks)])]
            starts = range(0, len(arrays), len(ranks))
            joined = [np.concatenate(arrays[start : start + len(ranks)]) for start in starts]
            total = yield from cross.reduce(joined, call.op, Owners(ends))
            total.finish(block, 0, hi - lo)
        if apply is not None and lo < hi:
            apply(first + lo, first + hi)

    rows = list(pairwise(bounds))
    reads = PeerReads(node, call, send, rows, ranks, consume)
    return reads.steps() if cross is None else refusing(cross, reads.slot, reads.steps())


def barrier(node: Node) -> Steps:
    """Enter, and wait until all ranks have entered."""
    slot = node.sequence.next_slot()
    yield slot.until_free()
    yield from enter(node, slot, header.BARRIER, None)
    slot.publish(DONE)
