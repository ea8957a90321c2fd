"""Broadcast in the shared memory of a node: every rank copies the array of one source rank.

The source is the root on its own node.  On any other node it is the first rank, which receives the
array by messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from ncclkv.comm.messages import algorithms
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.shm import header
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.hierarchical import NodeGroup, refusing
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE, ENTERED
from ncclkv.comm.shm.staging import HALF_BYTES, INLINE_BYTES
from ncclkv.comm.transport import Request, Steps
from ncclkv.comm.types import Buffer


class Broadcast:
    """One broadcast, as one rank carries it out.

    Parameters
    ----------
    node : Node
    call : CollectiveHeader
    buffer : ndarray
        Sent by the root, received by all other ranks.
    channel : Channel, optional
        The channel of all ranks, if there are other nodes.
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
        self._slot = node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        if len(self._node.nodes) > 1:
            return refusing(self._group, self._slot, self._long())
        if self._bytes.size <= INLINE_BYTES:
            return self._inline()
        return self._long()

    def _inline(self) -> Steps:
        """Copy a short array whole, through staging memory."""
        node, slot, nbytes = self._node, self._slot, self._bytes.size
        ring = node.ring(nbytes)
        position, previous = ring.take(slot)
        yield [*slot.until_free(), *(previous.unfinished() if previous is not None else ())]
        slot.write_header(header.write(self._call, None, None))
        if node.rank == self._source:
            ring.copies(position, nbytes)[node.index][:] = self._bytes
        else:
            yield from self._enter()
            self._bytes[:] = ring.copies(position, nbytes)[node.ranks.index(self._source)]
        slot.publish(DONE)

    def _long(self) -> Steps:
        """Copy a long array in chunks."""
        node, slot = self._node, self._slot
        offset = node.offset_of(self._bytes)
        staged = node.rank == self._source and offset is None
        if staged:
            node.double_buffer.enqueue(slot)
        yield slot.until_free()
        slot.write_header(header.write(self._call, offset, None))
        if node.rank != self._source:
            yield from self._receive()
        elif staged:
            yield from node.double_buffer.acquire(slot)
            yield from self._send(staged=True)
        else:
            yield from self._send(staged=False)
            yield slot.stragglers(DONE)
        slot.publish(DONE)

    def _chunks(self) -> Iterator[tuple[int, Buffer]]:
        """Yield the index of each chunk, and its bytes."""
        for index, start in enumerate(range(0, self._bytes.size, HALF_BYTES)):
            yield index, self._bytes[start : start + HALF_BYTES]

    def _send(self, *, staged: bool) -> Steps:
        """Publish each chunk to this node as soon as it has arrived here."""
        node, slot = self._node, self._slot
        for index, chunk in self._chunks():
            if self._group is not None:
                first = self._sources.index(self._call.root)
                yield from algorithms.broadcast(self._group.channel, chunk, first)
            if staged:
                if index > 1:
                    yield slot.stragglers(ENTERED + index - 1)
                node.double_buffer.copy(node.index, index, chunk.size)[:] = chunk
            slot.publish(ENTERED + index)

    def _receive(self) -> Steps:
        """Copy each chunk that the source has published."""
        node, slot, nbytes = self._node, self._slot, self._bytes.size
        offset = yield from self._enter()
        source = node.ranks.index(self._source)
        whole = None if offset is None else node.view(source, offset, nbytes)
        for index, chunk in self._chunks():
            yield slot.waiting_for(self._source, ENTERED + index)
            if whole is None:
                chunk[:] = node.double_buffer.copy(source, index, chunk.size)
                slot.publish(ENTERED + index + 1)
            else:
                start = index * HALF_BYTES
                chunk[:] = whole[start : start + chunk.size]

    def _enter(self) -> Generator[Sequence[Request], None, Offset | None]:
        """Wait for the source, compare its call with this rank's; return its array's offset."""
        yield self._slot.waiting_for(self._source, ENTERED)
        words = self._slot.headers()[self._node.ranks.index(self._source)]
        header.check(self._call, self._slot.digest, self._node.rank, self._source, words)
        return header.offsets(words)[0]
