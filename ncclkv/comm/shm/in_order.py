"""From node to node where sums are made in rank order: parts travel, and no sums of nodes.

Of each slice that the ranks of one place sum, each takes a share: it gets every rank's part of
that, adds them up by rank, and sends the sum to the others.  So a node sends as many parts as it
has ranks where `CrossNode` sends their sum, and receives sums as there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate

import numpy as np

from ncclkv.comm.messages.algorithms import slices
from ncclkv.comm.shm.hierarchical import Rail
from ncclkv.comm.transport import Request
from ncclkv.comm.types import Buffer

Steps = Generator[Sequence[Request], None, None]


class OrderedCrossNode(Rail):
    """The way of one reduction between nodes: every rank's part travels."""

    def reduce(
        self, parts: Sequence[Buffer], op: str
    ) -> Generator[Sequence[Request], None, OrderedReduced]:
        """Reduce the parts that all ranks have of a slice; `parts` are those of this node."""
        total = np.empty(parts[0].size, parts[0].dtype)
        shares = [slice(lo, hi) for lo, hi in slices(total.size, self.lane.size)]
        by_node = self._space([len(each) for each in self.nodes], shares, parts[0].dtype)
        yield from self._swap(parts, by_node, shares)
        by_rank = {
            rank: part
            for ranks, arrived in zip(self.nodes, by_node, strict=True)
            for rank, part in zip(ranks, arrived, strict=True)
        }
        own = total[shares[self.lane.rank]]
        self.lane.kernels.reduce([by_rank[rank] for rank in sorted(by_rank)], own, op)
        yield from self._spread(total, shares)
        return OrderedReduced(total)

    def _space(
        self, counts: Sequence[int], shares: Sequence[slice], dtype: np.dtype
    ) -> list[Buffer]:
        """Room for the parts of this rank's share, of each node as many as it has ranks."""
        share = shares[self.lane.rank]
        length = share.stop - share.start
        space = self.lane.scratch(sum(counts) * length * dtype.itemsize).view(dtype)
        stops = list(accumulate(counts))
        return [
            space[(stop - count) * length : stop * length].reshape(count, length)
            for stop, count in zip(stops, counts, strict=True)
        ]

    def _swap(
        self, parts: Sequence[Buffer], by_node: Sequence[Buffer], shares: Sequence[slice]
    ) -> Steps:
        """Send each peer this node's parts of its share, and get all nodes' of this one's."""
        lane = self.lane
        np.stack([part[shares[lane.rank]] for part in parts], out=by_node[lane.rank])
        arriving = [lane.receive(by_node[peer].reshape(-1), peer) for peer in lane.peers]
        leaving = [
            lane.send(np.concatenate([part[shares[peer]] for part in parts]), peer)
            for peer in lane.peers
        ]
        yield [*arriving, *leaving]

    def _spread(self, total: Buffer, shares: Sequence[slice]) -> Steps:
        """Send the sum of this rank's share to those whose node wants it, and get theirs."""
        lane = self.lane
        own = total[shares[lane.rank]]
        homes = range(len(self.nodes)) if self.home is None else [self.home]
        messages = [lane.send(own, peer) for peer in lane.peers if peer in homes]
        if lane.rank in homes:
            messages += [lane.receive(total[shares[peer]], peer) for peer in lane.peers]
        yield messages


class OrderedReduced:
    """A slice, reduced over all ranks."""

    def __init__(self, total: Buffer) -> None:
        self._total = total

    def finish(self, block: Buffer, lo: int, hi: int) -> None:
        """Write elements ``[lo, hi)``."""
        block[...] = self._total[lo:hi]
