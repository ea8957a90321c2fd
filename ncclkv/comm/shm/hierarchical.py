"""Collectives across nodes: messages between ranks of the same index on each node.

In an ordered reduction the parts of all ranks travel between the nodes, instead of one sum a node.
Each node then sends as many parts as it has ranks.  The cost was measured on one machine of 2
cores, not idle, split into two nodes.  At 2 ranks a node a sum of 64 MiB took a tenth to a quarter
longer.  At 3 ranks a node the sum took a quarter to a half longer, and a sum of 1 MiB about a
tenth.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ncclkv.comm import two_step
from ncclkv.comm.destinations import To
from ncclkv.comm.messages.channel import Channel, limits
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import CollectiveSlot
from ncclkv.comm.transport import LocalRequest, Messages, Request, Steps
from ncclkv.comm.two_step import Sum, slices
from ncclkv.comm.types import Buffer
from ncclkv.errors import OrderMismatch
from ncclkv.kernels.host.chunks import working_dtype
from ncclkv.kernels.host.reduce import finish


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
    ranks : sequence of int
    """

    def __init__(self, channel: Channel, ranks: Sequence[int]) -> None:
        self.ranks = ranks
        self._whole = channel
        self.channel = channel.among(_Subset(channel.transport, ranks))

    def refuse(self) -> None:
        """Send the peers a message that none expects: ranks have made different calls."""
        for rank in self.ranks:
            if rank != self._whole.rank:
                self._whole.refuse(rank)


def refusing(group: NodeGroup | None, slot: CollectiveSlot, steps: Steps) -> Steps:
    """Take the steps of a collective over several nodes; refuse other calls at all ranks."""
    try:
        yield from steps
    except OrderMismatch:
        slot.fail()
        if group is not None:  # ranks of other nodes cannot read this rank's header
            group.refuse()
        raise


class CrossNode(NodeGroup):
    """The reduction of one slice between the ranks of one index on each node.

    Every node sends the sum of its ranks' parts; in an ordered reduction it sends every part.

    Parameters
    ----------
    node : Node
    channel : Channel
        Of all ranks, as for `NodeGroup`.
    to : To
        The ranks whose nodes receive the sums.
    ordered : bool
        Whether all parts are folded in rank order, so that the bits are the same on any nodes.
    """

    def __init__(self, node: Node, channel: Channel, to: To, *, ordered: bool) -> None:
        ranks = [each[node.index] for each in node.nodes if node.index < len(each)]
        super().__init__(channel, ranks)
        self._to = to.among(node.nodes, node.index)
        self._nodes = node.nodes
        self._size = channel.size
        self._ordered = ordered

    def reduce(
        self, parts: Sequence[Buffer], op: str, owners: To | None = None
    ) -> Generator[Sequence[Request], None, Reduced]:
        """Reduce a slice over all ranks; `parts` are those of this node's ranks, in their order.

        With `owners`, each of these ranks receives its part of the slice alone.
        """
        count, dtype = parts[0].size, parts[0].dtype
        to: To = owners or self._to
        own = slice(None) if owners is None else slice(*owners.part(self.channel.rank, count))
        if self._ordered:
            total = np.empty(count, dtype)[own]
            yield from Sum(self.channel, parts, self._nodes, total, op, to).steps()
            return Reduced(total, 1, "sum")
        summed = "sum" if op == "avg" else op
        total = np.empty(count, working_dtype(dtype, op))
        self.channel.kernels.reduce(parts, total, summed)
        order = [[index] for index in range(len(self._nodes))]
        yield from Sum(self.channel, [total], order, total[own], summed, to).steps()
        return Reduced(total[own], self._size, op)


def wire_bytes(
    node: Node, count: int, dtype: np.dtype[Any], op: str, to: To, *, sharded: bool, ordered: bool
) -> int:
    """Return the bytes of a sum that neighbours read of this rank, and that it sends to nodes.

    Parameters
    ----------
    node : Node
    count : int
    dtype : dtype
    op : str
    to : To
    sharded : bool
        Whether each element of the sum is written once a node.
    ordered : bool
        As for `CrossNode`.
    """
    nodes = to.among(node.nodes, node.index)
    lo, hi = [*slices(count, node.owners), (0, 0)][min(node.index, node.owners)]
    width = nodes.part(len(node.nodes) - 1, hi - lo)[1]
    copies = 0 if sharded else sum(to.receives(rank) for rank in node.ranks if rank != node.rank)
    inside = (count - width + copies * width) * dtype.itemsize
    itemsize = dtype.itemsize if ordered else working_dtype(dtype, op).itemsize
    size, index = len(node.nodes), node.nodes.index(tuple(node.ranks))
    parts = len(node.ranks) if ordered else 1
    return inside + two_step.wire_bytes(width, itemsize, nodes, index, size, limits(size), parts)


class Reduced(NamedTuple):
    """The total of a slice over all ranks, before it is rounded and averaged.

    Attributes
    ----------
    total : ndarray
    size : int
        The count of ranks, by which an average is divided.
    op : str
    """

    total: Buffer
    size: int
    op: str

    def finish(self, block: Buffer, lo: int, hi: int) -> None:
        """Write elements ``[lo, hi)`` as a reduction gives them."""
        finish(self.total[lo:hi], self.size, block, self.op)


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
            return LocalRequest(self._ranks[peer])
        return self._transport.send(data, self._ranks[peer], tag)

    def receive(self, into: Buffer, peer: int, tag: int) -> Request:
        if not into.size:
            return LocalRequest(self._ranks[peer])
        return self._transport.receive(into, self._ranks[peer], tag)
