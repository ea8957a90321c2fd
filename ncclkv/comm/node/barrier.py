"""A barrier on one node: one meeting."""

from __future__ import annotations

from ncclkv.comm.node import note
from ncclkv.comm.node.flags import DONE
from ncclkv.comm.node.node import Node
from ncclkv.comm.node.shown import enter
from ncclkv.comm.work import Steps


def barrier(node: Node) -> Steps:
    """Come, and see that all others have come."""
    turn = node.flags.turn()
    yield turn.free()
    yield from enter(node, turn, note.BARRIER, None)
    turn.reach(DONE)
