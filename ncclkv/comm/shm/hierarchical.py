"""Collectives across nodes: messages between ranks of the same index on each node."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from ncclkv.comm.messages import two_step
from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.shm.node import Node
from ncclkv.comm.transport import Messages, Request
from ncclkv.comm.types import Buffer
from ncclkv.kernels.host.chunks import working_dtype
from ncclkv.kernels.host.reduce import finish

_REFUSAL = np.empty(0, np.uint8)


class NodeGroup:
    """Ranks of several nodes, this one included, and their part of one collective.

    Parameters
    ----------
    channel : Channel
        Of all ranks; its messages are this collective's alone.
    ranks : sequence of int

    Attributes
    ----------
    channel : Channel
        Of these ranks.
    """

    def __init__(self, channel: Channel, ranks: Sequence[int]) -> None:
        self._messages = _Subset(channel.transport, ranks)
        self.channel = channel.among(self._messages)

    def refuse(self) -> None:
        """Send the peers a message that none expects: ranks have made different calls."""
        for peer in self.channel.peers:
            self._messages.refuse(peer, self.channel.tag)


class CrossNode(NodeGroup):
    """The reduction of one slice between the ranks of one index on each node.

    Every node sends the sum of its ranks' parts; in an ordered reduction it sends every part.

    Parameters
    ----------
    node : Node
    channel : Channel
        Of all ranks, as for `NodeGroup`.
    root : int or None
        The rank whose node receives the sums; by default all nodes do.
    ordered : bool
        Whether all parts are folded in rank order, so that the bits are the same on any nodes.
    """

    def __init__(self, node: Node, channel: Channel, root: int | None, *, ordered: bool) -> None:
        ranks = [each[node.index] for each in node.nodes if node.index < len(each)]
        super().__init__(channel, ranks)
        roots = [number for number, each in enumerate(node.nodes) if root in each]
        self._root_node = roots[0] if roots else None
        self._nodes = node.nodes
        self._size = channel.size
        self._ordered = ordered

    def reduce(
        self, parts: Sequence[Buffer], op: str
    ) -> Generator[Sequence[Request], None, Reduced]:
        """Reduce a slice over all ranks; `parts` are those of this node's ranks, in their order."""
        count, dtype = parts[0].size, parts[0].dtype
        if self._ordered:
            total = np.empty(count, dtype)
            yield from two_step.reduce(
                self.channel, parts, self._nodes, total, op, root=self._root_node
            )
            return Reduced(total, 1, "sum")
        summed = "sum" if op == "avg" else op
        total = np.empty(count, working_dtype(dtype))
        self.channel.kernels.reduce(parts, total, summed)
        order = [[number] for number in range(len(self._nodes))]
        yield from two_step.reduce(
            self.channel, [total], order, total, summed, root=self._root_node
        )
        return Reduced(total, self._size, op)


class Reduced:
    """The total of a slice over all ranks, before it is rounded and averaged.

    Parameters
    ----------
    total : ndarray
    size : int
        The number of ranks to divide an average by.
    op : str
    """

    def __init__(self, total: Buffer, size: int, op: str) -> None:
        self._total = total
        self._size = size
        self._op = op

    def finish(self, block: Buffer, lo: int, hi: int) -> None:
        """Write elements ``[lo, hi)`` as a reduction gives them."""
        finish(self._total[lo:hi], self._size, block, self._op)


class _Subset(Messages):
    """A subset of a transport's ranks, numbered anew; errors name the ranks of the transport.

    Empty messages are skipped, so an empty message on the wire always means a refusal.
    """

    def __init__(self, transport: Messages, ranks: Sequence[int]) -> None:
        self.rank, self.size = ranks.index(transport.rank), len(ranks)
        self._transport = transport
        self._ranks = ranks

    def send(self, data: Buffer, peer: int, tag: int) -> Request:
        if not data.size:
            return _Nothing(self._ranks[peer])
        return self._transport.send(data, self._ranks[peer], tag)

    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        if not into.size:
            return _Nothing(self._ranks[peer])
        return self._transport.receive(into, self._ranks[peer], tag)

    def refuse(self, peer: int, tag: int) -> None:
        """Send a peer an empty message."""
        self._transport.send(_REFUSAL, self._ranks[peer], tag)


@dataclass
class _Nothing(Request):
    """An empty message, which is not sent."""

    peer: int

    def done(self) -> bool:
        return True
