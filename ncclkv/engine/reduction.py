"""`Reduction`: the collectives that sum the gradients of a `Span`, a range of a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.destinations import EVERYONE, To
from ncclkv.comm.types import Buffer
from ncclkv.compress.base import Codec
from ncclkv.engine.events import Events
from ncclkv.errors import NotSupported
from ncclkv.table import plan
from ncclkv.table.bucket import Bucket, Range
from ncclkv.table.registry import Key


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
    collective : Collective or None
        The reduction prepared for the last launch.
    prepared_for : (str, bool) or None
        The op of that reduction, and whether it writes to the weights.
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
    collective: Collective | None = None
    prepared_for: tuple[str, bool] | None = None
    bucket: Bucket | None = None
    ranges: Sequence[Range] = ()
    _keys: Sequence[Key] | None = None

    @property
    def keys(self) -> Sequence[Key]:
        """The keys in the range, found at the first call."""
        if self._keys is None:
            ranges, bucket = self.ranges or [(self.lo, self.hi)], self.bucket
            self._keys = [] if bucket is None else plan.keys_in(bucket, ranges)
        return self._keys

    @property
    def number(self) -> int | None:
        """The number of the bucket."""
        return None if self.bucket is None else self.bucket.index


class Reduction(Protocol):
    """The collectives that make the sums of a bucket's gradients.

    A `Reducer` decides when a range is reduced; a `Reduction` decides by which collectives.

    Attributes
    ----------
    events : Events
        Those of the store.
    """

    events: Events

    def prepare(self, span: Span, receive: Buffer, op: str) -> Collective:
        """Return the reduction of a span's gradients, to be launched any number of times.

        Parameters
        ----------
        span : Span
        receive : ndarray
            Array for the sums, on the ranks that receive: the gradients or weights of the span.
        op : str
        """


class DenseReduction:
    """Reduces gradients without encoding, in one collective a span.

    Parameters
    ----------
    comm : Communicator
    events : Events
    """

    def __init__(self, comm: Communicator, events: Events) -> None:
        self._comm = comm
        self.events = events

    def prepare(self, span: Span, receive: Buffer, op: str) -> Collective:
        return self._comm.reduction(
            span.gradients, receive, op, to=span.to, sharded_update=span.node_shared
        )


def reduction_for(comm: Communicator, codec: Codec | None, events: Events) -> Reduction:
    """Return the reduction of the buckets of a store.

    Raises
    ------
    NotSupported
        When a codec is given: no reduction of encoded gradients exists yet.
    """
    if codec is not None:
        raise NotSupported(
            f"codec {codec.name!r}: this version does not encode gradients; leave out the codec"
        )
    return DenseReduction(comm, events)
