"""From node to node: each rank's slice, by messages to the ranks of the same place elsewhere."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from ncclkv.comm import schedule
from ncclkv.comm.base import Buffer
from ncclkv.comm.node.node import Node
from ncclkv.comm.schedule import Lane
from ncclkv.comm.transport import Messages, Pending
from ncclkv.kernels.host.pieces import working_dtype
from ncclkv.kernels.host.reduce import finish

_REFUSAL = np.zeros(1, np.uint8)
"""Shorter than what is sent of any sum that is worth slices."""


class Between:
    """The way of one collective between nodes.

    Parameters
    ----------
    node : Node
    lane : Lane
        Of all ranks; its messages are this collective's alone.
    root : int or None
        The one rank whose node gets sums; by default all do.
    """

    def __init__(self, node: Node, lane: Lane, root: int | None) -> None:
        ranks = [each[node.index] for each in node.nodes if node.index < len(each)]
        self._lane = replace(lane, transport=_Among(lane.transport, ranks))
        homes = [number for number, each in enumerate(node.nodes) if root in each]
        self._root = homes[0] if homes else None
        self._size = lane.size

    def refuse(self) -> None:
        """Let the other nodes find, by the length of a message, that ranks made different calls."""
        for peer in self._lane.peers:
            self._lane.send(_REFUSAL, peer)

    def reduce(self, parts: Sequence[Buffer], op: str) -> Generator[Sequence[Pending], None, Total]:
        """Reduce this node's parts of a slice, in rank order, and all nodes' sums, in theirs."""
        plain = "sum" if op == "avg" else op
        total = np.empty(parts[0].size, working_dtype(parts[0].dtype))
        self._lane.kernels.reduce(parts, total, plain)
        yield from schedule.reduce(self._lane, total, total, plain, None, self._root)
        return Total(total, op, self._size)


class Total:
    """The sum of a slice over all ranks, in the dtype of its arithmetic."""

    def __init__(self, total: Buffer, op: str, size: int) -> None:
        self._total = total
        self._op = op
        self._size = size

    def finish(self, block: Buffer, lo: int, hi: int) -> None:
        """Write elements ``[lo, hi)`` as a reduction gives them."""
        finish(self._total[lo:hi], self._size, block, self._op)


class _Among(Messages):
    """Some of a transport's ranks, numbered anew; those named in errors keep their numbers."""

    def __init__(self, transport: Messages, ranks: Sequence[int]) -> None:
        self.rank, self.size = ranks.index(transport.rank), len(ranks)
        self._transport = transport
        self._ranks = ranks

    def send(self, data: Buffer, peer: int, tag: int) -> Pending:
        return self._transport.send(data, self._ranks[peer], tag)

    def receive(self, into: Buffer, peer: int, tag: int) -> Pending:
        return self._transport.receive(into, self._ranks[peer], tag)
