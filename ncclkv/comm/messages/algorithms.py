"""Collectives as generators of sends and receives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ncclkv.comm.messages import two_step
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.messages.two_step import SHORT_BYTES, slices
from ncclkv.comm.types import Apply, Buffer

PIECE_BYTES = 1024 * 1024
"""Bytes of a rank's share of a piece: a piece is this times the number of ranks."""


def _pieces(count: int, itemsize: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the element ranges of the pieces of a long reduction."""
    step = max(1, PIECE_BYTES // itemsize) * size
    for lo in range(0, max(count, 1), step):
        yield lo, min(lo + step, count)


def reduce(
    channel: Channel, send: Buffer, receive: Buffer, op: str, apply: Apply | None, root: int | None
) -> Steps:
    """Reduce onto one root, or onto all ranks when it is None; long arrays in pieces."""
    order = _by_rank(channel)
    for lo, hi in _pieces(send.size, send.itemsize, channel.size):
        shifted = None if apply is None else _shifted(apply, lo)
        parts, total = [send[lo:hi]], receive[lo:hi]
        yield from two_step.reduce(channel, parts, order, total, op, shifted, root)


def _by_rank(channel: Channel) -> list[list[int]]:
    """Order a fold by rank, with one part from each."""
    return [[rank] for rank in range(channel.size)]


def _shifted(apply: Apply, by: int) -> Apply:
    """Return `apply` for ranges counted from element `by`."""
    return lambda lo, hi: apply(by + lo, by + hi)


def broadcast(channel: Channel, buffer: Buffer, root: int) -> Steps:
    """Copy the root's array to all: a long one in slices, which their owners pass on."""
    if buffer.nbytes <= SHORT_BYTES:
        if channel.rank == root:
            yield [channel.send(buffer, peer) for peer in channel.peers]
        else:
            yield [channel.receive(buffer, root)]
        return
    bounds = [buffer[lo:hi] for lo, hi in slices(buffer.size, channel.size)]
    if channel.rank == root:
        yield [channel.send(bounds[peer], peer) for peer in channel.peers]
        others: list[int] = []
    else:
        yield [channel.receive(bounds[channel.rank], root)]
        others = [peer for peer in channel.peers if peer != root]
    # The root's own slice has no owner to pass it on, so the root sends it to each.
    is_root = channel.rank == root
    last = [channel.send(bounds[root], peer) for peer in channel.peers] if is_root else []
    first = [] if is_root else [channel.receive(bounds[root], root)]
    arriving = [channel.receive(bounds[peer], peer) for peer in others]
    leaving = [channel.send(bounds[channel.rank], peer) for peer in others]
    yield [*first, *last, *arriving, *leaving]


def reduce_scatter(channel: Channel, send: Buffer, receive: Buffer, op: str) -> Steps:
    """Reduce each rank's part at that rank."""
    shares = [(rank * receive.size, (rank + 1) * receive.size) for rank in range(channel.size)]
    yield from two_step.fold(channel, [send], _by_rank(channel), shares, receive, op)


def allgather(channel: Channel, send: Buffer, receive: Buffer) -> Steps:
    """Send every rank's array to all ranks."""
    parts = receive.reshape(channel.size, -1)
    if not np.shares_memory(send, parts[channel.rank]):
        parts[channel.rank][...] = send
    arriving = [channel.receive(parts[peer], peer) for peer in channel.peers]
    yield arriving + [channel.send(send, peer) for peer in channel.peers]


def barrier(channel: Channel) -> Steps:
    """Send an empty message from each rank to each: a missing message names its rank."""
    nothing = channel.scratch(0)
    arriving = [channel.receive(nothing, peer) for peer in channel.peers]
    yield arriving + [channel.send(nothing, peer) for peer in channel.peers]


def exchange(channel: Channel, own: Buffer, received: list[Buffer]) -> Steps:
    """Send bytes of any length from each rank to each: the lengths first."""
    lengths = np.zeros(channel.size, np.int64)
    lengths[channel.rank] = own.size
    yield from allgather(channel, lengths[channel.rank : channel.rank + 1], lengths)
    received[:] = [np.empty(length, np.uint8) for length in lengths]
    received[channel.rank] = own
    arriving = [channel.receive(received[peer], peer) for peer in channel.peers]
    yield arriving + [channel.send(own, peer) for peer in channel.peers]
