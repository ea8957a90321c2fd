"""Setup of shared memory: all ranks agree on one sharing method, or share none."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence

from ncclkv import env
from ncclkv.comm.control import ObjectComm
from ncclkv.comm.roster import Roster
from ncclkv.comm.shm.methods import WAYS, SharingMethod
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.segment import Segment
from ncclkv.comm.transport import Transport

_ORDERED = ("x86_64", "AMD64")
"""Processors that let others see stores in the order in which they were made."""

_LABEL = "memory of nodes"

_log = logging.getLogger("ncclkv")


def form(transport: Transport, control: ObjectComm, roster: Roster) -> Node | None:
    """Return this rank's node; None when ranks cannot share memory, or each is alone on its node.

    Collective over all ranks.
    """
    nodes = roster.nodes
    if len(nodes) == transport.size:
        return None
    # A launcher may give the variable to some ranks alone.
    wish = max((each.memory for each in roster.members), key=env.NODE_MEMORY.index)
    reasons = [f"NCCLKV_NODE_MEMORY={wish}"] if wish != env.NODE_MEMORY[0] else []
    ways = [way(transport) for way in WAYS[env.NODE_MEMORY.index(wish) :]]
    if platform.machine() not in _ORDERED:
        reasons, ways = [f"{platform.machine()} does not keep the order of stores"], []
    for way in ways:
        spaces, problem = _try(way, control)
        if not problem:
            _say(transport, way.does, reasons)
            return Node(transport.node, transport.rank, nodes, spaces, transport.notify)
        reasons.append(f"{way.name}: {problem}")
    _say(transport, "exchange messages", reasons)
    return None


def _try(way: SharingMethod, control: ObjectComm) -> tuple[Sequence[Segment], str]:
    """The memory of this rank's node, when all ranks have theirs; else why one has not."""
    offer, spaces, problem = None, [], ""
    try:
        offer = way.offer()
    except OSError as error:
        problem = str(error)
    said = control.allgather((offer, problem), _LABEL)
    problem = next((each for _, each in said if each), "")
    if problem:
        return [], problem
    try:
        spaces = way.join([each for each, _ in said])
    except OSError as error:
        problem = str(error)
    return spaces, next((each for each in control.allgather(problem, _LABEL) if each), "")


def _say(transport: Transport, what: str, reasons: Sequence[str]) -> None:
    """One line of the log, from one rank."""
    if transport.rank == 0:
        why = f" ({'; '.join(reasons)})" if reasons else ""
        _log.info("ncclkv: the ranks of a node %s%s", what, why)
