"""`Placement`: the ranks that receive sums and update, and the collective before a pull.

=============  =======================  ====================  ===================================
``update_on``  a push reduces to        the updater runs on   a pull begins with
=============  =======================  ====================  ===================================
every_rank     every rank (allreduce)   every rank            no collective
root           the root (reduce)        the root alone        a broadcast of the updated ranges
sharded        owners (reduce-scatter)  each part's owner     an allgather of the updated ranges
=============  =======================  ====================  ===================================

An optimizer updates an equal slice of each bucket on each rank, and a function whole keys.

A placement chooses the destination of sums (`ncclkv.comm.destinations.To`), and nothing else in the
engine depends on it.  If the destination is `Owners`, each rank allocates, saves and loads the
optimizer's states of its part alone.  A placement of another kind of parts also changes
``StoredBucket.part``.

Under ``sharded`` each bucket is padded to a multiple of 16 elements a rank, so all slices have one
length.  NCCL then takes one reduce-scatter and one allgather a bucket.  A range of pushed keys is
owned by the same ranks as its bucket (`Owners.within`).  Rows of scalars count from the first
element of the part, and every rank counts the updates of all keys.  A function has its keys by
`ncclkv.table.plan.divide`; a new key moves no other key, whose owner may have a state in the
function.  Without an updater each owner writes its part of the sum to its weights.

The next pull, wait or barrier gathers the elements that were updated since.  On a node that shares
weights the owners have written in place, and the ranks only wait for each other.  A change of the
rule publishes all values before, because other ranks may own the elements afterwards.  If a
function raises, it ends the updates of its rank in this flush, and the other ranks update their own
keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from ncclkv.comm.base import Communicator
from ncclkv.comm.buffers import check_root
from ncclkv.comm.destinations import EVERYONE, Owners, Root, To, bounds_of
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import DoneWork, Work
from ncclkv.engine.reduction import Span
from ncclkv.errors import UsageError
from ncclkv.table import plan
from ncclkv.table.bucket import Bucket

_SLICE_UNIT = 16
"""Slices begin at multiples of so many elements: two ranks share no line of a cache."""


class Placement(Protocol):
    """A placement of updates, on one rank.

    Attributes
    ----------
    owner : str
        The ranks that update, as a text: "every rank", "rank 0", or "owners".
    leader : int
        The first rank that updates; it writes and reads checkpoints.
    updates : bool
        Whether this rank updates the sums that it receives.
    replicated : bool
        Whether every rank makes each update, and so has all values and optimizer states.
    divides : bool
        Whether ranks update, and have the optimizer states of, different parts of a bucket.
    shares_weights : bool
        Whether the ranks of a node may share weights, of which each rank updates a part.
    multiple : int
        The length of a bucket is a multiple of so many elements.
    """

    owner: str
    leader: int
    updates: bool
    replicated: bool
    divides: bool
    shares_weights: bool
    multiple: int

    def to(self, count: int) -> To:
        """Return the destination of the sum of a bucket of `count` elements."""

    def by_key(self, buckets: Sequence[Bucket], loads: list[int]) -> Sequence[To]:
        """Return the destinations of the sums of buckets, if a rule updates whole keys.

        A bucket's destination depends on the buckets before it alone: it is the same after a later
        bucket has been added.  `loads` is as of `ncclkv.table.plan.divide`.
        """

    def publish(self, span: Span) -> Work:
        """Launch the collective that gives every rank the updated weights of a span."""


class EveryRank:
    """Every rank receives the sums, and updates."""

    owner = "every rank"
    leader = 0
    updates = True
    replicated = True
    divides = False
    shares_weights = True
    multiple = 1

    def __init__(self, comm: Communicator, root: int) -> None: ...

    def to(self, count: int) -> To:
        return EVERYONE

    def by_key(self, buckets: Sequence[Bucket], loads: list[int]) -> Sequence[To]:
        return [EVERYONE] * len(buckets)

    def publish(self, span: Span) -> Work:
        return DoneWork()


class AtRoot:
    """The root alone receives the sums and updates, and broadcasts the weights."""

    replicated = False
    divides = False
    shares_weights = False
    multiple = 1

    def __init__(self, comm: Communicator, root: int) -> None:
        self.owner = f"rank {root}"
        self.leader = root
        self.updates = comm.rank == root
        self._comm = comm
        self._to = Root(root)

    def to(self, count: int) -> To:
        return self._to

    def by_key(self, buckets: Sequence[Bucket], loads: list[int]) -> Sequence[To]:
        return [self._to] * len(buckets)

    def publish(self, span: Span) -> Work:
        return self._comm.broadcast(span.weights, self.leader)


class Sharded:
    """Each rank receives and updates a part of every bucket; the ranks gather the parts."""

    owner = "owners"
    leader = 0
    updates = True
    replicated = False
    divides = True
    shares_weights = True

    def __init__(self, comm: Communicator, root: int) -> None:
        self._comm = comm
        # NCCL reduces and gathers parts of equal length in one collective, others in one each.
        self.multiple = comm.size * _SLICE_UNIT

    def to(self, count: int) -> To:
        return Owners([0, *(hi for _, hi in slices(count, self._comm.size, _SLICE_UNIT))])

    def by_key(self, buckets: Sequence[Bucket], loads: list[int]) -> Sequence[To]:
        return [Owners(bounds) for bounds in plan.divide(buckets, loads)]

    def publish(self, span: Span) -> Work:
        bounds = bounds_of(span.to, span.weights.size, self._comm.size)
        lo, hi = span.to.part(self._comm.rank, span.weights.size)
        counts = [end - begin for begin, end in pairwise(bounds)]
        return self._comm.allgatherv(span.weights[lo:hi], span.weights, counts)


_PLACEMENTS: dict[str, Callable[[Communicator, int], Placement]] = {
    "every_rank": EveryRank,
    "root": AtRoot,
    "sharded": Sharded,
}


def placement(update_on: str, root: int, comm: Communicator) -> Placement:
    """Return the placement that `update_on` names.

    Raises
    ------
    UsageError
    """
    if not isinstance(update_on, str) or update_on not in _PLACEMENTS:
        raise UsageError(f"update_on={update_on!r} is unknown; use every_rank, root or sharded")
    check_root(root, comm.size)
    return _PLACEMENTS[update_on](comm, int(root))
