"""How the ranks of each node come to share memory: all of them, in one way, or none."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Sequence

from ncclkv.comm.base import Control
from ncclkv.comm.node.node import Node
from ncclkv.comm.node.space import FileSpace, Space, Ticket
from ncclkv.comm.transport import Transport

_ORDERED = ("x86_64", "AMD64")
"""Processors that let others see stores in the order in which they were made."""

_DESCRIPTORS = 6
_SPARE_DESCRIPTORS = 64
"""What a rank of the node takes of them: its file, and parts of it that are mapped; and the user's.
"""

_log = logging.getLogger("ncclkv")


def form(transport: Transport, control: Control) -> Node | None:
    """The node of this rank, or None where ranks cannot share memory or have nobody to share with.

    Collective over all ranks.
    """
    own, ticket, problem = _create(len(transport.node))
    offers = control.allgather((tuple(transport.node), ticket, problem), "memory of nodes")
    nodes = list(dict.fromkeys(node for node, _, _ in offers))
    if len(nodes) == len(offers):
        return None
    spaces, problem = _open(transport, own, [ticket for _, ticket, _ in offers], problem)
    problems = [each for each in control.allgather(problem, "memory of nodes") if each]
    if problems:
        _say(transport, f"exchange messages, for they cannot share memory: {problems[0]}")
        return None
    _say(transport, "share memory: anonymous files")
    return Node(transport.node, transport.rank, nodes, spaces, transport.tell)


def _create(ranks: int) -> tuple[FileSpace | None, Ticket | None, str]:
    """This rank's own memory, to be shared by so many, or why there is none."""
    if platform.machine() not in _ORDERED:
        return None, None, f"{platform.machine()} does not keep the order of stores"
    try:
        free = _free_descriptors()
        if free < _DESCRIPTORS * ranks + _SPARE_DESCRIPTORS:
            return None, None, f"{free} file descriptors are left; raise the limit by ulimit -n"
        space, ticket = FileSpace.create()
    except (OSError, AttributeError, ImportError) as error:  # the last two: not Linux
        return None, None, str(error)
    return space, ticket, ""


def _free_descriptors() -> int:
    """How many files this process may still open."""
    import resource  # which not every system has

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = len(os.listdir("/proc/self/fd"))
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - used


def _open(
    transport: Transport, own: FileSpace | None, tickets: Sequence[Ticket | None], problem: str
) -> tuple[list[Space], str]:
    """The memory of all ranks of this node, or why it cannot be had."""
    spaces: list[Space] = []
    for rank in transport.node:
        ticket = tickets[rank]
        if ticket is None or own is None:
            return [], problem or f"rank {rank} has none"
        try:
            spaces.append(own if rank == transport.rank else FileSpace.open(ticket))
        except OSError as error:
            return [], f"rank {transport.rank} cannot open that of rank {rank}: {error}"
    return spaces, problem


def _say(transport: Transport, what: str) -> None:
    """One line of the log, from one rank."""
    if transport.rank == 0:
        _log.info("ncclkv: the ranks of a node %s", what)
