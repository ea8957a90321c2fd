"""Allgather, reduce_scatter and barrier in the shared memory of a node: all ranks read all arrays.

An array that neighbours can map is read in place, and does not change until all ranks are done.
Any other array is copied in chunks, each before the phase after which peers read it.  A rank that
reaches a phase has read the chunk of the phase before, so a double buffer is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.shm import header
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED, CollectiveSlot
from ncclkv.comm.shm.staging import HALF_BYTES, INLINE_BYTES
from ncclkv.comm.types import Buffer
from ncclkv.kernels.base import Kernels

Consume = Callable[[int, int, list[Buffer]], None]
"""``consume(lo, hi, parts)``: columns ``[lo, hi)`` of every rank's array can be read."""


def enter(
    node: Node, slot: CollectiveSlot, call: header.CollectiveHeader, offset: Offset | None
) -> Steps:
    """Publish a call and the offset of its array; compare the peers' calls with it."""
    slot.write_header(header.write(call, offset, None))
    slot.publish(ENTERED)
    yield slot.stragglers(ENTERED)
    header.check_all(call, node, slot.headers())


class PeerReads:
    """A collective in which every rank reads the arrays of all, as one rank carries it out.

    Parameters
    ----------
    node : Node
    call : CollectiveHeader
    own : ndarray, shape (1, columns) or (ranks, columns)
        This rank's array, contiguous.  If it has one row a rank, each rank reads only its own row.
        `consume` may then write to this rank's row of `own`, and to no other row.
    consume : callable
        Called with all ranks' columns, each ``(rows, hi - lo)``, which together are all columns.
    """

    def __init__(
        self, node: Node, call: header.CollectiveHeader, own: Buffer, consume: Consume
    ) -> None:
        self._node = node
        self._call = call
        self._own = own
        self._consume = consume
        self._slot = node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        if self._own.nbytes <= INLINE_BYTES:
            return self._inline()
        self._node.double_buffer.enqueue(self._slot)
        return self._long()

    def _inline(self) -> Steps:
        """Copy short arrays whole."""
        node, slot, own = self._node, self._slot, self._own
        ring = node.ring(own.nbytes)
        position, previous = ring.take(slot)
        yield [*slot.until_free(), *(previous.unfinished() if previous is not None else ())]
        copies = ring.copies(position, own.nbytes)
        parts = [copy.view(own.dtype).reshape(own.shape) for copy in copies]
        parts[node.index][...] = own
        yield from enter(node, slot, self._call, None)
        self._consume(0, own.shape[1], parts)
        slot.publish(DONE)

    def _long(self) -> Steps:
        """Read mapped arrays in place, and the others in staged chunks."""
        node, slot, (rows, columns) = self._node, self._slot, self._own.shape
        step = HALF_BYTES // (rows * self._own.itemsize)
        yield slot.until_free()
        offset = node.offset_of(self._own.reshape(-1))
        if offset is None:
            yield node.double_buffer.until_first(slot)
            yield node.double_buffer.take(slot)
            self._copy(0, 0, min(step, columns))
        node.double_buffer.dequeue(slot)
        yield from enter(node, slot, self._call, offset)
        offsets = [header.offsets(text)[0] for text in slot.headers()]
        wholes = [self._whole(index, where) for index, where in enumerate(offsets)]
        if None not in offsets:
            step = columns
        for number, lo in enumerate(range(0, columns, step)):
            hi = min(lo + step, columns)
            if number:
                if offset is None:
                    self._copy(number, lo, hi)
                slot.publish(ENTERED + number)
                yield slot.stragglers(ENTERED + number)
            self._consume(lo, hi, self._parts(wholes, number, lo, hi))
        slot.publish(DONE)
        if offset is not None:
            yield slot.stragglers(DONE)

    def _copy(self, number: int, lo: int, hi: int) -> None:
        """Copy columns to the double buffer, but not the row that only this rank reads."""
        half, own = self._staged(self._node.index, number, hi - lo), self._own[:, lo:hi]
        if len(own) == 1:
            half[...] = own
            return
        previous, after = slice(self._node.index), slice(self._node.index + 1, None)
        half[previous] = own[previous]
        half[after] = own[after]

    def _whole(self, index: int, offset: Offset | None) -> Buffer | None:
        """Return a rank's mapped array; None when that rank copies its array in chunks."""
        own = self._own
        if index == self._node.index:
            return own
        if offset is None:
            return None
        return self._node.view(index, offset, own.nbytes).view(own.dtype).reshape(own.shape)

    def _staged(self, index: int, number: int, columns: int) -> Buffer:
        """Return a rank's copy of a chunk."""
        rows, dtype = self._own.shape[0], self._own.dtype
        copy = self._node.double_buffer.copy(index, number, rows * columns * dtype.itemsize)
        return copy.view(dtype).reshape(rows, columns)

    def _parts(
        self, wholes: Sequence[Buffer | None], number: int, lo: int, hi: int
    ) -> list[Buffer]:
        """Return the chunk's columns of all ranks."""
        return [
            self._staged(index, number, hi - lo) if whole is None else whole[:, lo:hi]
            for index, whole in enumerate(wholes)
        ]


def allgather(node: Node, call: header.CollectiveHeader, send: Buffer, receive: Buffer) -> Steps:
    """Copy every rank's array; `send` may be this rank's part of `receive`."""
    parts = receive.reshape(len(node.ranks), -1)
    in_place = np.shares_memory(send, parts[node.index])

    def consume(lo: int, hi: int, arrays: list[Buffer]) -> None:
        for index, array in enumerate(arrays):
            if index != node.index or not in_place:
                parts[index, lo:hi] = array[0]

    return PeerReads(node, call, send.reshape(1, -1), consume).steps()


def reduce_scatter(
    node: Node, call: header.CollectiveHeader, kernels: Kernels, send: Buffer, receive: Buffer
) -> Steps:
    """Reduce this rank's part, in rank order; `receive` may be that part of `send`."""
    own = node.index

    def consume(lo: int, hi: int, arrays: list[Buffer]) -> None:
        kernels.reduce([array[own] for array in arrays], receive[lo:hi], call.op)

    rows = send.reshape(len(node.ranks), -1)
    return PeerReads(node, call, rows, consume).steps()


def barrier(node: Node) -> Steps:
    """Enter, and wait until all ranks have entered."""
    slot = node.sequence.next_slot()
    yield slot.until_free()
    yield from enter(node, slot, header.BARRIER, None)
    slot.publish(DONE)
