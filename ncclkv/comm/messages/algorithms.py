"""The collectives, as schedules of messages between ranks.

A long reduction goes in pieces.  Of each piece every rank owns a slice: it receives its peers'
slices, reduces them in rank order, and sends the result to those who want it.  Every rank so sends
and receives twice the buffer less one slice, the least that an allreduce can do, and every element
is summed once, by one rank, in one order.  A short reduction saves the second trip: all ranks send
all to all and each sums everything, in the same order, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ncclkv.comm.messages import framing
from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.transport import Messages, Request
from ncclkv.comm.types import Apply, Buffer
from ncclkv.kernels.base import Kernels

SHORT_BYTES = 16 * 1024
"""Up to here a second trip costs more than the bytes that it saves."""

PIECE_BYTES = 1024 * 1024
"""Bytes of a rank's slice of a piece: a piece is this times the number of ranks."""


@dataclass(frozen=True)
class Channel:
    """Where one collective's messages go: a transport, and a tag that is its alone.

    The first message to each peer begins with the mark of this rank's calls, and the first from
    each is looked at for it before anything is done with what follows.

    Attributes
    ----------
    transport : Messages
    tag : int
    kernels : Kernels
    scratch : callable
        ``scratch(nbytes)``: memory until its next call.
    mark : int
        The value of `Flight.mark`.
    """

    transport: Messages
    tag: int
    kernels: Kernels
    scratch: Callable[[int], Buffer]
    mark: int = 0
    _greeted: set[tuple[str, int]] = field(default_factory=set)

    @property
    def rank(self) -> int:
        return self.transport.rank

    @property
    def size(self) -> int:
        return self.transport.size

    @property
    def peers(self) -> list[int]:
        """The other ranks, nearest successor first, so that not all begin with rank 0."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def among(self, messages: Messages) -> Channel:
        """The lane of some of its ranks, numbered anew."""
        return Channel(messages, self.tag, self.kernels, self.scratch, self.mark)

    def send(self, data: Buffer, peer: int) -> Request:
        data = data.view(np.uint8)
        if not self._is_first("send", peer):
            return self.transport.send(data, peer, self.tag)
        return framing.send(self.transport, data, peer, self.tag, self.mark)

    def receive(self, into: Buffer, peer: int) -> Request:
        into = into.view(np.uint8)
        if not self._is_first("receive", peer):
            return self.transport.receive(into, peer, self.tag)
        return framing.receive(self.transport, into, peer, self.tag, self.mark)

    def _is_first(self, way: str, peer: int) -> bool:
        """Whether a message is the first to a peer, or from one."""
        first = (way, peer) not in self._greeted
        self._greeted.add((way, peer))
        return first

    def gather_parts(self, own: Buffer, outgoing: Callable[[int], Buffer] | None = None) -> _Parts:
        """Start to receive as much as `own` from every peer, and to send each its `outgoing`."""
        space = self.scratch(own.nbytes * (self.size - 1)).view(own.dtype)
        parts = [own] * self.size
        pending = []
        for slot, peer in enumerate(self.peers):
            parts[peer] = space[slot * own.size : (slot + 1) * own.size]
            pending.append(self.receive(parts[peer], peer))
        if outgoing is not None:
            pending += [self.send(outgoing(peer), peer) for peer in self.peers]
        return _Parts(parts, pending)


@dataclass(frozen=True)
class _Parts:
    """Every rank's part of one slice, in rank order, once `pending` is done."""

    parts: list[Buffer]
    pending: list[Request]


def slices(count: int, size: int) -> list[tuple[int, int]]:
    """Element ranges that cut ``[0, count)`` into `size` parts as equal as can be."""
    bounds = [count * rank // size for rank in range(size + 1)]
    return list(pairwise(bounds))


def _pieces(count: int, itemsize: int, size: int) -> Iterator[tuple[int, int]]:
    """Element ranges of the pieces that a long reduction goes in."""
    step = max(1, PIECE_BYTES // itemsize) * size
    for lo in range(0, count, step):
        yield lo, min(lo + step, count)


def reduce(
    lane: Channel, send: Buffer, receive: Buffer, op: str, apply: Apply | None, root: int | None
) -> Steps:
    """Reduce onto one root, or onto all ranks when it is None."""
    if send.nbytes <= SHORT_BYTES:
        yield from _reduce_short(lane, send, receive, op, apply, root)
        return
    for lo, hi in _pieces(send.size, send.itemsize, lane.size):
        shifted = None if apply is None else _shifted(apply, lo)
        yield from _reduce_piece(lane, send[lo:hi], receive[lo:hi], op, shifted, root)


def _shifted(apply: Apply, by: int) -> Apply:
    """`apply` for ranges counted from element `by`."""
    return lambda lo, hi: apply(by + lo, by + hi)


def _reduce_short(
    lane: Channel, send: Buffer, receive: Buffer, op: str, apply: Apply | None, root: int | None
) -> Steps:
    """All send all, and each that receives sums it all."""
    if root is not None and root != lane.rank:
        yield [lane.send(send, root)]
        return
    gathered = lane.gather_parts(send, (lambda peer: send) if root is None else None)
    yield gathered.pending
    lane.kernels.reduce(gathered.parts, receive, op)
    if apply is not None:
        apply(0, send.size)


def _reduce_piece(
    lane: Channel, send: Buffer, receive: Buffer, op: str, apply: Apply | None, root: int | None
) -> Steps:
    """Each rank sums its slice; then the slices go to the root, or to all."""
    bounds = slices(send.size, lane.size)
    lo, hi = bounds[lane.rank]
    gathered = lane.gather_parts(send[lo:hi], lambda peer: send[slice(*bounds[peer])])
    # A peer's slice of `receive` may be the memory that is being sent to it, so the results are
    # received only after all of this step has left.
    yield gathered.pending
    own = receive[lo:hi]
    lane.kernels.reduce(gathered.parts, own, op)
    if root is not None and root != lane.rank:
        yield [lane.send(own, root)]
        return
    arriving = [(peer, lane.receive(receive[slice(*bounds[peer])], peer)) for peer in lane.peers]
    leaving = [lane.send(own, peer) for peer in lane.peers] if root is None else []
    if apply is not None:
        apply(lo, hi)
    for peer, message in arriving:
        yield [message]
        if apply is not None:
            apply(*bounds[peer])
    yield leaving


def broadcast(lane: Channel, buffer: Buffer, root: int) -> Steps:
    """Short: the root sends all to all.  Long: it deals out slices, which their owners pass on."""
    if buffer.nbytes <= SHORT_BYTES:
        if lane.rank == root:
            yield [lane.send(buffer, peer) for peer in lane.peers]
        else:
            yield [lane.receive(buffer, root)]
        return
    bounds = [buffer[lo:hi] for lo, hi in slices(buffer.size, lane.size)]
    if lane.rank == root:
        yield [lane.send(bounds[peer], peer) for peer in lane.peers]
        others: list[int] = []
    else:
        yield [lane.receive(bounds[lane.rank], root)]
        others = [peer for peer in lane.peers if peer != root]
    # The root's own slice has no owner to pass it on, so the root sends it to each.
    last = [lane.send(bounds[root], peer) for peer in lane.peers] if lane.rank == root else []
    first = [] if lane.rank == root else [lane.receive(bounds[root], root)]
    arriving = [lane.receive(bounds[peer], peer) for peer in others]
    leaving = [lane.send(bounds[lane.rank], peer) for peer in others]
    yield [*first, *last, *arriving, *leaving]


def reduce_scatter(lane: Channel, send: Buffer, receive: Buffer, op: str) -> Steps:
    """Each rank sums the part that it keeps."""
    parts = send.reshape(lane.size, -1)
    gathered = lane.gather_parts(parts[lane.rank], lambda peer: parts[peer])
    yield gathered.pending
    lane.kernels.reduce(gathered.parts, receive, op)


def allgather(lane: Channel, send: Buffer, receive: Buffer) -> Steps:
    """All send all to all."""
    parts = receive.reshape(lane.size, -1)
    if not np.shares_memory(send, parts[lane.rank]):
        parts[lane.rank][...] = send
    arriving = [lane.receive(parts[peer], peer) for peer in lane.peers]
    yield arriving + [lane.send(send, peer) for peer in lane.peers]


def barrier(lane: Channel) -> Steps:
    """An empty message from each to each: what is missing has a rank's name."""
    nothing = lane.scratch(0)
    arriving = [lane.receive(nothing, peer) for peer in lane.peers]
    yield arriving + [lane.send(nothing, peer) for peer in lane.peers]


def exchange(lane: Channel, own: Buffer, received: list[Buffer]) -> Steps:
    """Bytes of any length from each to each: lengths first, then as many bytes."""
    lengths = np.zeros(lane.size, np.int64)
    lengths[lane.rank] = own.size
    yield from allgather(lane, lengths[lane.rank : lane.rank + 1], lengths)
    received[:] = [np.empty(length, np.uint8) for length in lengths]
    received[lane.rank] = own
    arriving = [lane.receive(received[peer], peer) for peer in lane.peers]
    yield arriving + [lane.send(own, peer) for peer in lane.peers]
