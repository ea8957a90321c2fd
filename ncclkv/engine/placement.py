"""`Placement`: the ranks that receive sums and update, and the step before a pull.

=============  ==========================  ====================  ================================
``update_on``  a push reduces to           the updater runs on   a pull first
=============  ==========================  ====================  ================================
every_rank     every rank (allreduce)      every rank            nothing
root           the root (reduce)           the root alone        broadcasts what the root changed
=============  ==========================  ====================  ================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ncclkv.comm.base import Communicator
from ncclkv.comm.buffers import check_root
from ncclkv.comm.types import EVERYONE, Buffer, DoneWork, Root, To, Work
from ncclkv.errors import NotSupported, UsageError


class Placement(Protocol):
    """A placement of updates, as one rank sees it.

    Attributes
    ----------
    owner : str
        The ranks that update, for messages.
    leader : int
        The first rank that updates; it writes and reads checkpoints.
    updates : bool
        Whether this rank updates.
    replicated : bool
        Whether every rank makes each update, and so has the values and the optimizer's states.
    shares_weights : bool
        Whether the ranks of a node may share weights, each of them updating a slice.
    """

    owner: str
    leader: int
    updates: bool
    replicated: bool
    shares_weights: bool

    def to(self, count: int) -> To:
        """Return the destination of a sum of `count` elements."""

    def publish(self, weights: Buffer) -> Work:
        """Launch the step that gives every rank updated weights."""


class EveryRank:
    """Every rank receives the sums, and updates."""

    owner = "every rank"
    leader = 0
    updates = True
    replicated = True
    shares_weights = True

    def __init__(self, comm: Communicator, root: int) -> None: ...

    def to(self, count: int) -> To:
        return EVERYONE

    def publish(self, weights: Buffer) -> Work:
        return DoneWork()


class AtRoot:
    """The root alone receives the sums and updates; it broadcasts the weights."""

    replicated = False
    shares_weights = False

    def __init__(self, comm: Communicator, root: int) -> None:
        self.owner = f"rank {root}"
        self.leader = root
        self.updates = comm.rank == root
        self._comm = comm
        self._to = Root(root)

    def to(self, count: int) -> To:
        return self._to

    def publish(self, weights: Buffer) -> Work:
        return self._comm.broadcast(weights, self.leader)


_PLACEMENTS: dict[str, Callable[[Communicator, int], Placement]] = {
    "every_rank": EveryRank,
    "root": AtRoot,
}


def placement(update_on: str, root: int, comm: Communicator) -> Placement:
    """Return the placement of that name.

    Raises
    ------
    UsageError, NotSupported
    """
    if isinstance(update_on, str) and update_on == "sharded":
        raise NotSupported("update_on='sharded' is not in this version; use every_rank or root")
    if not isinstance(update_on, str) or update_on not in _PLACEMENTS:
        raise UsageError(f"unknown update_on={update_on!r}; choose every_rank or root")
    check_root(root, comm.size)
    return _PLACEMENTS[update_on](comm, int(root))
