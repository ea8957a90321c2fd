"""A barrier on one node: one meeting."""

from __future__ import annotations

from ncclkv.comm.messages.progress import Steps
from ncclkv.comm.shm import header
from ncclkv.comm.shm.gather_scatter import enter
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import DONE


def barrier(node: Node) -> Steps:
    """Come, and see that all others have come."""
    turn = node.sequence.next_slot()
    yield turn.free()
    yield from enter(node, turn, header.BARRIER, None)
    turn.publish(DONE)
