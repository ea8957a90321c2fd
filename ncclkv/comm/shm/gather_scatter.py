"""Allgather, reduce_scatter and barrier in the shared memory of a node: all ranks read all arrays.

An array that neighbours can map is read where it lies, and stays as it is until all ranks are done.
Any other is copied in chunks, each before the phase after which it is read.  A rank that reaches a
phase has read the chunk of the phase before, so a double buffer is enough.
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
    node: Node, turn: CollectiveSlot, call: header.CollectiveHeader, place: Offset | None
) -> Steps:
    """Publish a call and the offset of its array; compare the peers' calls with it."""
    turn.write_header(header.write(call, place, None))
    turn.publish(ENTERED)
    yield turn.stragglers(ENTERED)
    header.check_all(call, node, turn.headers())


class PeerReads:
    """A collective in which every rank reads the arrays of all, as one rank carries it out.

    Parameters
    ----------
    node : Node
    call : Call
    own : ndarray, shape (1, columns) or (ranks, columns)
        This rank's array, contiguous.  Of one row for each rank, every rank reads its own alone:
        `consume` may write to that row, and to no other of `own`.
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
        self._turn = node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        if self._own.nbytes <= INLINE_BYTES:
            return self._inline()
        self._node.halves.open(self._turn)
        return self._long()

    def _inline(self) -> Steps:
        """Copy short arrays whole."""
        node, turn, own = self._node, self._turn, self._own
        ring = node.ring(own.nbytes)
        slot, before = ring.take(turn)
        yield [*turn.free(), *(before.unfinished() if before is not None else ())]
        copies = ring.copies(slot, own.nbytes)
        parts = [copy.view(own.dtype).reshape(own.shape) for copy in copies]
        parts[node.index][...] = own
        yield from enter(node, turn, self._call, None)
        self._consume(0, own.shape[1], parts)
        turn.publish(DONE)

    def _long(self) -> Steps:
        """Read arrays where they can be mapped, and chunks of the others."""
        node, turn, (rows, columns) = self._node, self._turn, self._own.shape
        step = HALF_BYTES // (rows * self._own.itemsize)
        yield turn.free()
        place = node.place(self._own.reshape(-1))
        if place is None:
            yield node.halves.undecided(turn)
            yield node.halves.take(turn)
            self._copy(0, 0, min(step, columns))
        node.halves.decide(turn)
        yield from enter(node, turn, self._call, place)
        places = [header.places(text)[0] for text in turn.headers()]
        wholes = [self._whole(index, where) for index, where in enumerate(places)]
        if None not in places:
            step = columns
        for number, lo in enumerate(range(0, columns, step)):
            hi = min(lo + step, columns)
            if number:
                if place is None:
                    self._copy(number, lo, hi)
                turn.publish(ENTERED + number)
                yield turn.stragglers(ENTERED + number)
            self._consume(lo, hi, self._parts(wholes, number, lo, hi))
        turn.publish(DONE)
        if place is not None:
            yield turn.stragglers(DONE)

    def _copy(self, number: int, lo: int, hi: int) -> None:
        """Copy columns to the double buffer, but for a row that this rank alone reads."""
        half, own = self._half(self._node.index, number, hi - lo), self._own[:, lo:hi]
        if len(own) == 1:
            half[...] = own
            return
        before, after = slice(self._node.index), slice(self._node.index + 1, None)
        half[before] = own[before]
        half[after] = own[after]

    def _whole(self, index: int, place: Offset | None) -> Buffer | None:
        """Return a rank's array where it lies; None when that rank copies."""
        own = self._own
        if index == self._node.index:
            return own
        if place is None:
            return None
        return self._node.view(index, place, own.nbytes).view(own.dtype).reshape(own.shape)

    def _half(self, index: int, number: int, columns: int) -> Buffer:
        """Return a rank's copy of a chunk."""
        rows, dtype = self._own.shape[0], self._own.dtype
        copy = self._node.halves.copy(index, number, rows * columns * dtype.itemsize)
        return copy.view(dtype).reshape(rows, columns)

    def _parts(
        self, wholes: Sequence[Buffer | None], number: int, lo: int, hi: int
    ) -> list[Buffer]:
        """Return the chunk's columns of all ranks."""
        return [
            self._half(index, number, hi - lo) if whole is None else whole[:, lo:hi]
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
    turn = node.sequence.next_slot()
    yield turn.free()
    yield from enter(node, turn, header.BARRIER, None)
    turn.publish(DONE)
