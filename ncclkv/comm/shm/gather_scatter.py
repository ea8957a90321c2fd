"""What every rank of a node shows to all: where it lies, or in copies, chunk after chunk.

What can be read where it lies stays as it is until all are done.  A chunk is copied before the
meeting that it is read after, the first before the ranks enter.  Who comes to a meeting has read
the chunk of the one before, so the next may be copied over that: two halves are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.shm import header
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED, CollectiveSlot
from ncclkv.comm.shm.staging import HALF_BYTES, INLINE_BYTES
from ncclkv.comm.types import Buffer

Take = Callable[[int, int, list[Buffer]], None]
"""``take(lo, hi, parts)``: columns ``[lo, hi)`` of what each rank shows can be read."""


def enter(
    node: Node, turn: CollectiveSlot, call: header.CollectiveHeader, place: Offset | None
) -> Steps:
    """Tell the others a call, and where they find its array; hold it against what they call."""
    turn.write_header(header.write(call, place, None))
    turn.publish(ENTERED)
    yield turn.stragglers(ENTERED)
    header.check_all(call, node, turn.notes())


class PeerReads:
    """A collective in which all ranks read what all show, as one rank does it.

    Parameters
    ----------
    node : Node
    call : Call
    own : ndarray, shape (1, columns) or (ranks, columns)
        What this rank shows, contiguous.  Of one row for each rank every rank reads its own alone:
        `take` may write to that, and to nothing else of `own`.
    take : callable
        Called with all ranks' columns, each ``(rows, hi - lo)``, which together are all columns.
    """

    def __init__(self, node: Node, call: header.CollectiveHeader, own: Buffer, take: Take) -> None:
        self._node = node
        self._call = call
        self._own = own
        self._take = take
        self._turn = node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        if self._own.nbytes <= INLINE_BYTES:
            return self._inline()
        self._node.halves.open(self._turn)
        return self._long()

    def _inline(self) -> Steps:
        """Show short copies of everything."""
        node, turn, own = self._node, self._turn, self._own
        ring = node.ring(own.nbytes)
        slot, before = ring.take(turn)
        yield [*turn.free(), *(before.unfinished() if before is not None else ())]
        copies = ring.copies(slot, own.nbytes)
        parts = [copy.view(own.dtype).reshape(own.shape) for copy in copies]
        parts[node.index][...] = own
        yield from enter(node, turn, self._call, None)
        self._take(0, own.shape[1], parts)
        turn.publish(DONE)

    def _long(self) -> Steps:
        """Show the arrays of ranks whose memory can be read, and chunks of the others'."""
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
        places = [header.places(text)[0] for text in turn.notes()]
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
            self._take(lo, hi, self._parts(wholes, number, lo, hi))
        turn.publish(DONE)
        if place is not None:
            yield turn.stragglers(DONE)

    def _copy(self, number: int, lo: int, hi: int) -> None:
        """Copy columns to where all can read them, but for a row that this rank alone reads."""
        half, own = self._half(self._node.index, number, hi - lo), self._own[:, lo:hi]
        if len(own) == 1:
            half[...] = own
            return
        before, after = slice(self._node.index), slice(self._node.index + 1, None)
        half[before] = own[before]
        half[after] = own[after]

    def _whole(self, index: int, place: Offset | None) -> Buffer | None:
        """All that a rank shows, where it lies; None where it copies."""
        own = self._own
        if index == self._node.index:
            return own
        if place is None:
            return None
        return self._node.view(index, place, own.nbytes).view(own.dtype).reshape(own.shape)

    def _half(self, index: int, number: int, columns: int) -> Buffer:
        """A rank's copy of a chunk."""
        rows, dtype = self._own.shape[0], self._own.dtype
        copy = self._node.halves.copy(index, number, rows * columns * dtype.itemsize)
        return copy.view(dtype).reshape(rows, columns)

    def _parts(
        self, wholes: Sequence[Buffer | None], number: int, lo: int, hi: int
    ) -> list[Buffer]:
        """The chunk's columns of all ranks."""
        return [
            self._half(index, number, hi - lo) if whole is None else whole[:, lo:hi]
            for index, whole in enumerate(wholes)
        ]
