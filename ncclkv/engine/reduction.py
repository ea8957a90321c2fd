"""`Reduction`: the collectives that sum the gradients of a `Span`, a range of a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.destinations import EVERYONE, To
from ncclkv.comm.types import Buffer
from ncclkv.table import plan
from ncclkv.table.bucket import Bucket, Entry, Range
from ncclkv.table.registry import Key

Senders = frozenset[int]
"""The ranks whose gradients are in a sum; None in its place stands for all ranks."""


@dataclass(eq=False, slots=True)
class Span:
    """Elements ``[lo, hi)`` of a bucket.

    Attributes
    ----------
    gradients, weights : ndarray, shape (hi - lo,)
        The range of the bucket's arrays.
    label : str
        Name of its collectives, for errors.
    to : To
        The destination of its sums.
    node_shared : bool
        Whether the ranks of the node share the weights, and update them together.
    reduction : Reduction or None
        The reduction of its keys; None stands for a sum without encoding.
    collective : Collective or None
        The collective prepared for the last launch.
    prepared_for : (str, bool, frozenset or None) or None
        The op of that collective, whether it writes to the weights, and the ranks that send.
    given : mapping of ndarray by key, or None
        The arrays of a push that is launched at once, in place of `gradients`.
    bucket : Bucket or None
    ranges : sequence of (int, int)
        The ranges of the bucket, if they are not ``[lo, hi)`` alone.
    """

    lo: int
    hi: int
    gradients: Buffer
    weights: Buffer
    label: str
    to: To = EVERYONE
    node_shared: bool = False
    reduction: Reduction | None = None
    collective: Collective | None = None
    prepared_for: tuple[str, bool, Senders | None] | None = None
    bucket: Bucket | None = None
    ranges: Sequence[Range] = ()
    given: Mapping[Key, Buffer] | None = None
    _entries: Sequence[Entry] | None = None

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries of the bucket whose elements lie in the range, found at the first call."""
        if self._entries is None:
            ranges, bucket = self.ranges or [(self.lo, self.hi)], self.bucket
            self._entries = [] if bucket is None else plan.entries_in(bucket, ranges)
        return self._entries

    def gradient(self, entry: Entry) -> Buffer:
        """Return the gradients of a key, which must not be written."""
        if self.given is not None:
            return self.given[entry.key]
        return self.gradients[entry.lo - self.lo : entry.hi - self.lo]

    @property
    def keys(self) -> Sequence[Key]:
        """The keys in the range."""
        return [entry.key for entry in self.entries]

    @property
    def bucket_index(self) -> int | None:
        """The index of the bucket; None of arrays without a bucket."""
        return None if self.bucket is None else self.bucket.index


class Reduction(Protocol):
    """The collectives that make sums of gradients.

    A `Reducer` decides when a range is reduced; a `Reduction` decides by which collectives.

    Attributes
    ----------
    reads_once : bool
        Whether the launch reads the gradients by `Span.gradient`, once, and returns after it.
    """

    reads_once: bool

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        """Return the reduction of a span's gradients, to be launched any number of times.

        Parameters
        ----------
        span : Span
        receive : ndarray
            Array for the sums, on the ranks that receive: the gradients or weights of the span.
        op : str
        senders : frozenset of int, optional
            The ranks whose gradients are in the sum; an average divides by their count.
        """


class DenseReduction:
    """Reduces gradients without encoding, in one collective a span.

    Its sums are over all ranks: those that do not send have the neutral element of the op.

    Parameters
    ----------
    comm : Communicator
    """

    reads_once = False

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        return self._comm.reduction(
            span.gradients, receive, op, to=span.to, sharded_update=span.node_shared
        )
