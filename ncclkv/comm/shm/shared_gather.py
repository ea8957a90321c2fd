"""Allgather into memory that the ranks of a node share: each part is written once a node.

Each rank has written its part in place before the call, so a node copies nothing.  Between nodes
each part is one message a node, to the rank of the same index there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.comm.messages.channel import Channel
from ncclkv.comm.shm import header
from ncclkv.comm.shm.gather_scatter import enter
from ncclkv.comm.shm.hierarchical import NodeGroup, refusing
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE
from ncclkv.comm.transport import Steps
from ncclkv.comm.types import Buffer


class SharedGather:
    """One allgather into shared memory, as one rank carries it out.

    Parameters
    ----------
    node : Node
    call : CollectiveHeader
    parts : sequence of ndarray
        The part of each rank in the shared memory.
    channel : Channel, optional
        The channel of all ranks, if there are other nodes.
    """

    def __init__(
        self,
        node: Node,
        call: header.CollectiveHeader,
        parts: Sequence[Buffer],
        channel: Channel | None = None,
    ) -> None:
        self._node, self._call, self._parts = node, call, parts
        others = [ranks for ranks in node.nodes if node.rank not in ranks]
        # On a smaller node, a rank receives for several indices of a larger one.
        self._targets = [ranks[node.index % len(ranks)] for ranks in others]
        self._sources = [
            rank
            for ranks in others
            for index, rank in enumerate(ranks)
            if index % len(node.ranks) == node.index
        ]
        self._group = None
        if channel is not None:
            ranks = sorted({node.rank, *self._targets, *self._sources})
            self._group = NodeGroup(channel, ranks)
        self._slot = node.sequence.next_slot()

    def steps(self) -> Steps:
        """Take this rank's part."""
        return refusing(self._group, self._slot, self._steps())

    def _steps(self) -> Steps:
        """Wait for the parts of this node, then exchange parts with other nodes."""
        node, slot = self._node, self._slot
        yield slot.until_free()
        nbytes = [self._parts[rank].nbytes for rank in node.ranks]
        yield from enter(node, slot, self._call, None, nbytes)
        if self._group is None:
            slot.publish(DONE)
            return
        index, channel, own = self._group.ranks.index, self._group.channel, self._parts[node.rank]
        arriving = [channel.receive(self._parts[rank], index(rank)) for rank in self._sources]
        yield arriving + [channel.send(own, index(rank)) for rank in self._targets]
        slot.publish(DONE)
        yield slot.stragglers(DONE)
