"""Setup of shared memory: all ranks agree on one sharing method, or share no memory.

The methods, in the order in which they are tried: anonymous files, and an MPI window through which
arrays are copied.  ``NCCLKV_NODE_MEMORY`` names the first method to try.  Each rank makes an offer;
if all ranks have made an offer they join, otherwise they try the next method.  A line of the log
(INFO) names the method, and why earlier methods failed.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from ncclkv import env
from ncclkv.comm.control import ObjectComm
from ncclkv.comm.diagnosis.roster import Roster
from ncclkv.comm.shm.node import CONTROL_BYTES, PAGE, Node
from ncclkv.comm.shm.segment import MIB, MemfdSegment, Segment, WindowSegment
from ncclkv.comm.shm.staging import HALF_BYTES
from ncclkv.comm.transport import Transport

_DESCRIPTORS = 6
"""File descriptors that a rank needs for each rank of its node."""

_SPARE_DESCRIPTORS = 64
"""File descriptors that are left to the program."""


class SharingMethod(ABC):
    """A method by which the ranks of a node share memory.

    Each rank makes an offer.  If all ranks have made an offer, all call `join`.  If an offer or a
    join fails on any rank, no rank uses this method.

    Parameters
    ----------
    transport : Transport

    Attributes
    ----------
    name : str
        As in ``NCCLKV_NODE_MEMORY``.
    action : str
        Description for the log, after "the ranks of a node".
    """

    name: str
    action: str

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ranks = list(transport.node)

    @abstractmethod
    def offer(self) -> Any:
        """Return the description of this rank's memory for the other ranks; local.

        Raises
        ------
        OSError
            When this rank cannot share memory.
        """

    @abstractmethod
    def join(self, offers: Sequence[Any]) -> list[Segment]:
        """Return the segments of this node's ranks, given all ranks' offers; collective.

        Raises
        ------
        OSError
            When a segment cannot be made or opened.
        """


class MemfdSharing(SharingMethod):
    """Anonymous files, one a rank, which the neighbours open through ``/proc``."""

    name = "files"
    action = "share memory: anonymous files"

    def offer(self) -> Any:
        try:
            free = free_descriptors()
            if free < descriptors(len(self._ranks)):
                raise OSError(f"{free} file descriptors are left; raise the limit by ulimit -n")
            self._local, ticket = MemfdSegment.create()
        except (AttributeError, ImportError) as error:  # this is not Linux
            raise OSError(str(error)) from error
        return ticket

    def join(self, offers: Sequence[Any]) -> list[Segment]:
        segments: list[Segment] = []
        own = self._transport.rank
        for rank in self._ranks:
            try:
                segments.append(self._local if rank == own else MemfdSegment.open(offers[rank]))
            except OSError as error:
                problem = f"rank {own} cannot open the memory file of rank {rank}: {error}"
                raise OSError(problem) from error
        return segments


def descriptors(ranks: int) -> int:
    """Return the file descriptors that a rank needs for the ranks of its node, and its program."""
    return _DESCRIPTORS * ranks + _SPARE_DESCRIPTORS


def free_descriptors() -> int:
    """Return the count of files that this process may still open."""
    import resource  # not on every system

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = len(os.listdir("/proc/self/fd"))
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - used


class StagedWindow(SharingMethod):
    """An MPI window of a fixed size on each node, through which arrays are copied."""

    name = "halves"
    action = f"copy through shared memory: a window with halves of {HALF_BYTES // MIB} MiB"

    def offer(self) -> Any:
        # Other processes take memory too: a write to a page that the system cannot supply is a
        # SIGBUS.  So the window takes half of the free memory.
        left = self._transport.windows_left() // 2 // len(self._ranks) // PAGE * PAGE
        if left < CONTROL_BYTES:
            raise OSError(
                f"half of the memory that is free for windows is {max(left, 0) / MIB:.1f} MiB a "
                f"rank, and {CONTROL_BYTES / MIB:.1f} are needed"
            )

    def join(self, offers: Sequence[Any]) -> list[Segment]:
        return [WindowSegment(part) for part in self._transport.window(CONTROL_BYTES)]


METHODS: tuple[type[SharingMethod], ...] = (MemfdSharing, StagedWindow)
"""Sharing methods, the fastest first, in the order of their names in `env.NODE_MEMORY`."""

_ORDERED = ("x86_64", "AMD64")
"""Processors on which other processors see stores in program order."""

_LABEL = "shared memory of nodes"

_logger = logging.getLogger("ncclkv")


class Sharing(NamedTuple):
    """The way in which the ranks of a node share memory, on which all ranks have agreed.

    Attributes
    ----------
    node : Node or None
        This rank's node; None if ranks share no memory.
    method : str
        Name of the method, as in ``NCCLKV_NODE_MEMORY``; empty if each rank is alone on its node.
    action : str
        Description of the method, after "the ranks of a node".
    reasons : sequence of str
        The reason against each faster method, with its name.
    """

    node: Node | None
    method: str = ""
    action: str = "are alone"
    reasons: Sequence[str] = ()


def setup_node(transport: Transport, control: ObjectComm, roster: Roster) -> Sharing:
    """Return this rank's node, and the method by which its ranks share memory.

    Collective over all ranks.
    """
    nodes = roster.nodes
    if len(nodes) == transport.size:
        return Sharing(None)
    # A launcher may set the variable on some ranks only: all ranks take the last method named.
    first = max((each.memory for each in roster.members), key=env.NODE_MEMORY.index)
    reasons = [f"NCCLKV_NODE_MEMORY={first}"] if first != env.NODE_MEMORY[0] else []
    methods = [method(transport) for method in METHODS[env.NODE_MEMORY.index(first) :]]
    if platform.machine() not in _ORDERED:
        reasons, methods = [f"{platform.machine()} does not keep the order of stores"], []
    for method in methods:
        segments, problem = _try(method, control)
        if not problem:
            node = Node(transport.node, transport.rank, nodes, segments, transport.notify)
            return _log(transport, Sharing(node, method.name, method.action, reasons))
        reasons.append(f"{method.name}: {problem}")
    return _log(transport, Sharing(None, env.NODE_MEMORY[-1], "exchange messages", reasons))


def _try(method: SharingMethod, control: ObjectComm) -> tuple[Sequence[Segment], str]:
    """Return the segments of this rank's node, and the text of a first problem; collective."""
    offer, segments, problem = None, [], ""
    try:
        offer = method.offer()
    except OSError as error:
        problem = str(error)
    offers = control.allgather((offer, problem), _LABEL)
    problem = next((each for _, each in offers if each), "")
    if problem:
        return [], problem
    try:
        segments = method.join([each for each, _ in offers])
    except OSError as error:
        problem = str(error)
    return segments, next((each for each in control.allgather(problem, _LABEL) if each), "")


def _log(transport: Transport, sharing: Sharing) -> Sharing:
    """Log a line about the agreement, on rank 0; return the agreement."""
    if transport.rank == 0:
        text = f" ({'; '.join(sharing.reasons)})" if sharing.reasons else ""
        _logger.info("ncclkv: the ranks of a node %s%s", sharing.action, text)
    return sharing
