"""Collectives as generators of sends and receives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncclkv.comm.destinations import To
from ncclkv.comm.messages.channel import SHORT_BYTES, Channel
from ncclkv.comm.transport import Steps
from ncclkv.comm.two_step import Sum, all_to_all, slices
from ncclkv.comm.types import Apply, Buffer

_LENGTH_BYTES = 8

_HEAD_BYTES = 1024
"""Bytes that the message of a length has room for: most objects need no second message."""


def reduction(
    channel: Channel, send: Buffer, receive: Buffer, op: str, to: To, apply: Apply | None
) -> Steps:
    """Reduce in rank order; of `Owners`, `receive` is this rank's part alone."""
    order = [[rank] for rank in range(channel.size)]
    return Sum(channel, [send], order, receive, op, to, apply).steps()


def broadcast(channel: Channel, buffer: Buffer, root: int) -> Steps:
    """Copy the root's array to all: a long one in slices, which their owners pass on."""
    if buffer.nbytes <= SHORT_BYTES:
        if channel.rank == root:
            yield [channel.send(buffer, peer) for peer in channel.peers]
        else:
            yield [channel.receive(buffer, root)]
        return
    parts = [buffer[lo:hi] for lo, hi in slices(buffer.size, channel.size)]
    if channel.rank == root:
        yield [channel.send(parts[peer], peer) for peer in channel.peers]
        # The root's own slice has no owner to pass it on, so the root sends it to each.
        yield [channel.send(parts[root], peer) for peer in channel.peers]
        return
    own = parts[channel.rank]
    yield [channel.receive(own, root)]
    arriving = [channel.receive(parts[peer], peer) for peer in channel.peers]
    yield arriving + [channel.send(own, peer) for peer in channel.peers if peer != root]


def gather(channel: Channel, send: Buffer, parts: Sequence[Buffer]) -> Steps:
    """Send a buffer to all ranks, and receive one from each."""
    channel.copy(send, parts[channel.rank])
    return all_to_all(channel, [send] * channel.size, parts)


def barrier(channel: Channel) -> Steps:
    """Send an empty message from each rank to each: a missing message names its rank."""
    return all_to_all(channel, *[[channel.scratch(0)] * channel.size] * 2)


def gather_bytes(channel: Channel, own: Buffer, received: list[Buffer]) -> Steps:
    """Send bytes of any length from each rank to each: short ones in the message of the length."""
    firsts = np.zeros((channel.size, _LENGTH_BYTES + _HEAD_BYTES), np.uint8)
    lengths, heads = firsts[:, :_LENGTH_BYTES].view(np.int64)[:, 0], firsts[:, _LENGTH_BYTES:]
    lengths[channel.rank] = own.size
    heads[channel.rank, : own.size] = own[:_HEAD_BYTES]
    yield from gather(channel, firsts[channel.rank], [*firsts])
    received[:] = [
        head[:length] if length <= _HEAD_BYTES else np.empty(length, np.uint8)
        for head, length in zip(heads, lengths, strict=True)
    ]
    received[channel.rank] = own
    long = [part if part.size > _HEAD_BYTES else None for part in received]
    yield from all_to_all(channel, [long[channel.rank]] * channel.size, long)
