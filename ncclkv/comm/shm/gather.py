"""An allgather on one node: each copies what all ranks show."""

from __future__ import annotations

import numpy as np

from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.shm.gather_scatter import PeerReads
from ncclkv.comm.shm.header import CollectiveHeader
from ncclkv.comm.shm.node import Node
from ncclkv.comm.types import Buffer


def allgather(node: Node, call: CollectiveHeader, send: Buffer, receive: Buffer) -> Steps:
    """Copy every rank's array.  Of `receive` others read but what is `send` itself."""
    parts = receive.reshape(len(node.ranks), -1)
    in_place = np.shares_memory(send, parts[node.index])

    def take(lo: int, hi: int, shown: list[Buffer]) -> None:
        for index, each in enumerate(shown):
            if index != node.index or not in_place:
                parts[index, lo:hi] = each[0]

    return PeerReads(node, call, send.reshape(1, -1), take).steps()
