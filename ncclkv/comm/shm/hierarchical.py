"""From node to node: messages between one rank of each, or between those of the same place."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from ncclkv.comm.messages import algorithms
from ncclkv.comm.messages.algorithms import Channel
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
    lane : Lane
        Of all ranks; its messages are this collective's alone.
    ranks : sequence of int

    Attributes
    ----------
    lane : Lane
        Of these ranks.
    """

    def __init__(self, lane: Channel, ranks: Sequence[int]) -> None:
        self._messages = _Among(lane.transport, ranks)
        self.lane = lane.among(self._messages)

    def refuse(self) -> None:
        """Let the others find, by the length of a message, that ranks made different calls."""
        for peer in self.lane.peers:
            self._messages.refuse(peer, self.lane.tag)


class Rail(NodeGroup):
    """The ranks of the same place on each node, who reduce a slice of all ranks' arrays.

    Parameters
    ----------
    node : Node
    lane : Lane
        As for `NodeGroup`.
    root : int or None
        The one rank whose node gets sums; by default all do.

    Attributes
    ----------
    home : int or None
        Which node is the root's.
    nodes : sequence of sequence of int
        The ranks of all nodes.
    size : int
        How many ranks there are on all nodes.
    """

    def __init__(self, node: Node, lane: Channel, root: int | None) -> None:
        super().__init__(lane, [each[node.index] for each in node.nodes if node.index < len(each)])
        homes = [number for number, each in enumerate(node.nodes) if root in each]
        self.home = homes[0] if homes else None
        self.nodes = node.nodes
        self.size = lane.size


class CrossNode(Rail):
    """The way of one reduction between nodes: sums of nodes travel."""

    def reduce(
        self, parts: Sequence[Buffer], op: str
    ) -> Generator[Sequence[Request], None, Reduced]:
        """Reduce this node's parts of a slice, in rank order, and all nodes' sums, in theirs."""
        plain = "sum" if op == "avg" else op
        total = np.empty(parts[0].size, working_dtype(parts[0].dtype))
        self.lane.kernels.reduce(parts, total, plain)
        yield from algorithms.reduce(self.lane, total, total, plain, None, self.home)
        return Reduced(total, op, self.size)


class Reduced:
    """The sum of a slice over all ranks, in the dtype of its arithmetic."""

    def __init__(self, total: Buffer, op: str, size: int) -> None:
        self._total = total
        self._op = op
        self._size = size

    def finish(self, block: Buffer, lo: int, hi: int) -> None:
        """Write elements ``[lo, hi)`` as a reduction gives them."""
        finish(self._total[lo:hi], self._size, block, self._op)


class _Among(Messages):
    """Some of a transport's ranks, numbered anew; those named in errors keep their numbers.

    What is empty is not sent: a refusal is, and so is like nothing that a rank expects.
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
        """Send what no rank expects."""
        self._transport.send(_REFUSAL, self._ranks[peer], tag)


@dataclass
class _Nothing(Request):
    """An empty message, which need not be sent."""

    peer: int

    def done(self) -> bool:
        return True
