"""A reduce_scatter on one node: each sums its part straight out of what all ranks show."""

from __future__ import annotations

from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.shm.gather_scatter import PeerReads
from ncclkv.comm.shm.header import CollectiveHeader
from ncclkv.comm.shm.node import Node
from ncclkv.comm.types import Buffer
from ncclkv.kernels.base import Kernels


def reduce_scatter(
    node: Node, call: CollectiveHeader, kernels: Kernels, send: Buffer, receive: Buffer
) -> Steps:
    """Sum this rank's part, in rank order; nobody else reads it, so `receive` may be there."""
    own = node.index

    def take(lo: int, hi: int, parts: list[Buffer]) -> None:
        kernels.reduce([part[own] for part in parts], receive[lo:hi], call.op)

    rows = send.reshape(len(node.ranks), -1)
    return PeerReads(node, call, rows, take).steps()
