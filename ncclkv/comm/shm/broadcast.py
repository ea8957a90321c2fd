"""Broadcast in the shared memory of a node: every rank copies the root's array, or copies of it.

On the root's node that is the root, elsewhere the first rank, who gets the array by messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from ncclkv.comm.messages import algorithms
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.shm import header
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.hierarchical import NodeGroup
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED
from ncclkv.comm.shm.staging import HALF_BYTES, INLINE_BYTES
from ncclkv.comm.transport import Request
from ncclkv.comm.types import Buffer
from ncclkv.errors import OrderMismatch


class Broadcast:
    """One broadcast, as one rank does it.

    Parameters
    ----------
    node : Node
    call : Call
    buffer : ndarray
        The root's is copied into every other rank's.
    channel : Channel, optional
        Of all ranks, if there are other nodes.
    """

    def __init__(
        self,
        node: Node,
        call: header.CollectiveHeader,
        buffer: Buffer,
        channel: Channel | None = None,
    ) -> None:
        self._node = node
        self._bytes = buffer.view("u1")
        self._call = call
        self._sources = [call.root if call.root in each else each[0] for each in node.nodes]
        self._source = next(rank for rank in self._sources if rank in node.ranks)
        self._group = None
        if channel is not None and node.rank == self._source:
            self._group = NodeGroup(channel, self._sources)
        self._turn = node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        if len(self._node.nodes) > 1:
            return self._told()
        if self._bytes.size <= INLINE_BYTES:
            return self._inline()
        return self._long()

    def _told(self) -> Steps:
        """Do it, and tell of other calls those who cannot see them."""
        try:
            yield from self._long()
        except OrderMismatch:
            self._turn.fail()
            if self._group is not None:
                self._group.refuse()
            raise

    def _inline(self) -> Steps:
        """Give or take a short copy."""
        node, turn, nbytes = self._node, self._turn, self._bytes.size
        ring = node.ring(nbytes)
        slot, before = ring.take(turn)
        yield [*turn.free(), *(before.unfinished() if before is not None else ())]
        turn.write_header(header.write(self._call, None, None))
        if node.rank == self._source:
            ring.copies(slot, nbytes)[node.index][:] = self._bytes
        else:
            yield from self._enter()
            self._bytes[:] = ring.copies(slot, nbytes)[node.ranks.index(self._source)]
        turn.publish(DONE)

    def _long(self) -> Steps:
        """Give or take chunk after chunk."""
        node, turn = self._node, self._turn
        place = node.place(self._bytes)
        copies = node.rank == self._source and place is None
        if copies:
            node.halves.open(turn)
        yield turn.free()
        turn.write_header(header.write(self._call, place, None))
        if node.rank != self._source:
            yield from self._receive()
        elif copies:
            yield node.halves.undecided(turn)
            yield node.halves.take(turn)
            node.halves.decide(turn)
            yield from self._give(copies=True)
        else:
            yield from self._give(copies=False)
            yield turn.stragglers(DONE)
        turn.publish(DONE)

    def _chunks(self) -> Iterator[tuple[int, Buffer]]:
        """The array in chunks, and their numbers."""
        for number, start in enumerate(range(0, self._bytes.size, HALF_BYTES)):
            yield number, self._bytes[start : start + HALF_BYTES]

    def _give(self, *, copies: bool) -> Steps:
        """Let the others of this node read each chunk as soon as it is here."""
        node, turn = self._node, self._turn
        for number, chunk in self._chunks():
            if self._group is not None:
                first = self._sources.index(self._call.root)
                yield from algorithms.broadcast(self._group.channel, chunk, first)
            if copies:
                if number > 1:
                    yield turn.stragglers(ENTERED + number - 1)
                node.halves.copy(node.index, number, chunk.size)[:] = chunk
            turn.publish(ENTERED + number)

    def _receive(self) -> Steps:
        """Copy what the source has made readable."""
        node, turn, nbytes = self._node, self._turn, self._bytes.size
        place = yield from self._enter()
        source = node.ranks.index(self._source)
        whole = None if place is None else node.view(source, place, nbytes)
        for number, chunk in self._chunks():
            yield turn.waiting_for(self._source, ENTERED + number)
            if whole is None:
                chunk[:] = node.halves.copy(source, number, chunk.size)
                turn.publish(ENTERED + number + 1)
            else:
                start = number * HALF_BYTES
                chunk[:] = whole[start : start + chunk.size]

    def _enter(self) -> Generator[Sequence[Request], None, Offset | None]:
        """Wait for the source, hold its call against this rank's; where its array is."""
        yield self._turn.waiting_for(self._source, ENTERED)
        text = self._turn.headers()[self._node.ranks.index(self._source)]
        header.check(self._call, self._turn.digest, self._node.rank, self._source, text)
        return header.places(text)[0]
