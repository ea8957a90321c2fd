"""`Reduction`: the way from the gradients of a bucket to their sums."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Apply, Buffer, Work
from ncclkv.compress.base import Codec
from ncclkv.engine.events import Events
from ncclkv.engine.placement import Placement
from ncclkv.engine.span import Span
from ncclkv.errors import NotSupported


class Reduction(Protocol):
    """The way from the gradients of a bucket to their sums.

    A `Reducer` decides when a range is reduced; a `Reduction` decides which collectives do it.
    """

    def launch(self, span: Span, receive: Buffer, op: str, apply: Apply | None) -> Work:
        """Launch the reduction of a span's gradients.

        Parameters
        ----------
        span : Span
        receive : ndarray
            The gradients of the span, or its weights, on the ranks that receive.
        op : str
        apply : callable or None
            Called with the ranges of the span whose sums are complete on this rank.
        """


class DenseReduction:
    """Reduces the gradients as they are, in one collective.

    Parameters
    ----------
    comm : Communicator
    placement : Placement
    events : Events
    """

    def __init__(self, comm: Communicator, placement: Placement, events: Events) -> None:
        self._comm = comm
        self._placement = placement
        self._events = events

    def launch(self, span: Span, receive: Buffer, op: str, apply: Apply | None) -> Work:
        wanted = op, receive is span.weights
        collective = span.collective
        if collective is None or span.prepared_for != wanted:
            collective = self._comm.reduction(
                span.gradients,
                receive,
                op,
                to=self._placement.to(span.hi - span.lo),
                sharded_update=span.node_shared,
            )
            collective.label = span.label
            span.collective, span.prepared_for = collective, wanted
        events = self._events
        events.sequence += 1
        if not events.heard:
            return collective.launch(apply)
        start, nbytes = partial(collective.launch, apply), span.gradients.nbytes
        return events.launch(start, span.label, nbytes, 0)


def reduction_for(
    comm: Communicator, placement: Placement, codec: Codec | None, events: Events
) -> Reduction:
    """Return the reduction of the buckets of a store.

    Raises
    ------
    NotSupported
        When there is no reduction of encoded gradients.
    """
    if codec is not None:
        raise NotSupported(f"codec {codec.name!r}: this version reduces gradients as they are")
    return DenseReduction(comm, placement, events)
