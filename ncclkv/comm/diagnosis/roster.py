"""`Roster`: the ranks of a communicator, with host, process, node and environment of each."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ncclkv import concurrency, env
from ncclkv.comm.control import ObjectComm
from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.comm.transport import Transport
from ncclkv.errors import LaunchError

_log = logging.getLogger("ncclkv")


class Member(NamedTuple):
    """A rank, as it describes itself.

    Attributes
    ----------
    host : str
    pid : int
    node : tuple of int
        The ranks of its node.
    ranks_per_node : int or None
        Its ``NCCLKV_RANKS_PER_NODE``.
    memory : str
        Its ``NCCLKV_NODE_MEMORY``, or the first method.
    problem : str
        The error of its environment; empty without one.
    unknown : tuple of str
        As `env.unknown`.
    token : str
        Random; rank 0's names the communicator.
    traces : bool
        Whether its ``NCCLKV_TRACE`` is set.
    """

    host: str
    pid: int
    node: tuple[int, ...]
    ranks_per_node: int | None
    memory: str
    problem: str
    unknown: tuple[str, ...]
    token: str
    traces: bool


class Roster(NamedTuple):
    """All ranks of a communicator.

    Attributes
    ----------
    members : sequence of Member
        In rank order.
    met : float
        This rank's ``concurrency.monotonic()`` when it had heard from all.  All ranks leave that
        exchange together, but for the time of a message: times since then are comparable between
        ranks.
    """

    members: Sequence[Member]
    met: float

    @property
    def name(self) -> str:
        """A name of the communicator that no other has, the same on all ranks."""
        return self.members[0].token

    @property
    def nodes(self) -> list[tuple[int, ...]]:
        """The ranks of each node, in the order of their lowest ranks."""
        return list(dict.fromkeys(member.node for member in self.members))


def meet(transport: Transport, control: ObjectComm) -> Roster:
    """Exchange descriptions with all ranks, and check that their environments fit together.

    Collective over all ranks.

    Raises
    ------
    LaunchError
        On all ranks, when a variable is wrong on one, or ``NCCLKV_RANKS_PER_NODE`` is not the same
        on all: who shares memory with whom would then depend on the rank that is asked.
    """
    members = control.allgather(_self(transport), "who the ranks are")
    met = concurrency.monotonic()
    for rank, member in enumerate(members):
        if member.problem:
            raise LaunchError(f"rank {rank} of {transport.size}: {member.problem}")
    _check_nodes(transport, members)
    if transport.rank == 0:
        _warn_of_unknown(tuple(dict.fromkeys(name for each in members for name in each.unknown)))
    return Roster(members, met)


def check_alone() -> None:
    """Check the environment of a rank that shares its communicator with no other.

    Raises
    ------
    LaunchError
        When a variable is wrong.
    """
    env.check()
    _warn_of_unknown(tuple(env.unknown()))


def _self(transport: Transport) -> Member:
    """This rank's own description."""
    limit, memory, problem = None, env.NODE_MEMORY[0], ""
    try:
        env.check()
        limit, memory = env.ranks_per_node(), env.node_memory()
    except LaunchError as error:
        problem = str(error)
    node, unknown = tuple(transport.node), tuple(env.unknown())
    token = os.urandom(4).hex()
    return Member(
        host=socket.gethostname(),
        pid=os.getpid(),
        node=node,
        ranks_per_node=limit,
        memory=memory,
        problem=problem,
        unknown=unknown,
        token=token,
        traces=bool(env.trace()),
    )


def _check_nodes(transport: Transport, members: Sequence[Member]) -> None:
    """Refuse a limit on the ranks of a node that is not the same on all ranks."""
    ranks: dict[int | None, list[int]] = {}
    for rank, member in enumerate(members):
        ranks.setdefault(member.ranks_per_node, []).append(rank)
    if len(ranks) == 1:
        return
    said = ", ".join(
        f"{'unset' if limit is None else limit} on {format_ranks(each)}"
        for limit, each in ranks.items()
    )
    raise LaunchError(
        f"rank {transport.rank} of {transport.size}: NCCLKV_RANKS_PER_NODE differs between ranks: "
        f"{said}; set it to one value on all ranks, or unset it on all"
    )


@cache
def _warn_of_unknown(names: Sequence[str]) -> None:
    """Log the variables that mean nothing, the first time in a process."""
    if names:
        _log.warning("ncclkv: unknown variables in the environment: %s", ", ".join(names))
