"""`NodeReduction`: sums of encoded gradients with one sender a node.

A rank uses its residuals in its slice of a bucket alone; all others stay 0.  A slice depends on the
bucket alone, so that what is owed stays on its rank whatever keys are pushed together.  Such keys
stay in their buckets.  The residuals of a node, added, are what the node owes.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Protocol

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.decoded import Nodes
from ncclkv.comm.programs.node_sum import NodeSum, node_form
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.base import Codec, Payloads
from ncclkv.engine.node_coders import NodeCoder, blocks_of
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.table.bucket import Bucket, Entry

_NOTHING = np.empty(0, np.uint8)


class NodeCodec(Codec, Payloads, Protocol):
    """A codec whose payloads can be cut into slices."""


class NodeReduction:
    """The reduction of the keys of a bucket that have one codec, whose senders are nodes.

    The ranges of a bucket use parts of one payload, as in `CodedReduction`.

    Parameters
    ----------
    comm : Communicator
        Of several nodes.
    codec : NodeCodec
    bucket : Bucket
    residuals : Residuals
    coder : NodeCoder
        Encodes the sums of nodes, and decodes their sum.
    """

    reads_once = False

    def __init__(
        self,
        comm: Communicator,
        codec: NodeCodec,
        bucket: Bucket,
        residuals: Residuals,
        coder: NodeCoder,
    ) -> None:
        self.codec = codec
        self._coder = coder
        self._comm = comm
        self._bucket = bucket
        self._nodes: Nodes = comm.nodes or ()
        self._residuals = residuals

    @cached_property
    def _payload(self) -> Buffer:
        """The codes of the bucket, of which this rank writes its slice."""
        return self._comm.allocate(self.codec.nbytes(self._bucket.count))

    @cached_property
    def _packed(self) -> Buffer:
        """The packed counts of the bucket."""
        return self._comm.allocate(self._packed_at(self._bucket.count))

    def _packed_at(self, element: int) -> int:
        """Return the position of the packed counts from an element of the bucket on."""
        return self.codec.packed_nbytes(element, len(self._nodes))

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm, codec = self._comm, self.codec
        ranks = frozenset(range(comm.size)) if senders is None else senders
        node_slices = slices_of(span, min(map(len, self._nodes)), codec.unit)
        form = node_form(
            codec,
            node_slices,
            ranks,
            span.to,
            self._nodes,
            shared=span.node_shared,
            itemsize=span.gradients.itemsize,
        )
        lo, hi = form.slice_of(comm.rank)
        start = codec.nbytes(span.lo + lo)
        payload, packed = self._payload[start : start + codec.nbytes(hi - lo)], _NOTHING
        if form.packs:
            start = self._packed_at(span.lo + lo)
            packed = self._packed[start : start + form.packed(hi - lo)]
        blocks = blocks_of(span, (lo, hi), self._residuals if codec.keeps_residual else None)
        encode = self._coder.encode(blocks, payload, op, len(ranks))
        result = self._coder.result(span, receive, form, op)
        made = NodeSum(span.gradients, encode, payload, result, form, packed)
        return comm.program(
            made.steps,
            what=f"a {codec.name} sum of nodes",
            nbytes=span.gradients.nbytes,
            sent=partial(form.sent, comm.rank),
        )

    def deal_residual(self, entry: Entry) -> None:
        """Give a key's residuals to the ranks of this node in whose slices they lie; collective.

        The residuals that a checkpoint has given to the ranks may be those of other slices.  What
        the node owes, the sum over its ranks, stays the same.
        """
        comm, own = self._comm, self._residuals.of(entry.spec)
        neighbours = next(ranks for ranks in self._nodes if comm.rank in ranks)
        node_slices = slices(self._bucket.count, min(map(len, self._nodes)), self.codec.unit)
        parts = [slice(0)] * comm.size
        for rank, (lo, hi) in zip(neighbours, node_slices, strict=False):
            first, end = max(lo, entry.lo) - entry.lo, min(hi, entry.hi) - entry.lo
            parts[rank] = slice(first, max(first, end))
        mine = parts[comm.rank]
        received = [own[:0].copy() for _ in parts]
        for rank in neighbours:
            received[rank] = np.empty_like(own[mine])
        work = comm.all_to_all([own[part] for part in parts], received)
        work.label = f"the residuals of key {entry.key!r}"
        work.wait()
        own[...] = 0
        comm.kernels.reduce([received[rank] for rank in neighbours], own[mine], "sum")


def slices_of(span: Span, owners: int, unit: int) -> list[Range]:
    """Return the slices of a span for as many ranks of a node, counted from its first element.

    Each is the range of one of the bucket's slices that lies in the span.

    Parameters
    ----------
    span : Span
    owners : int
    unit : int
        Slices begin at multiples of it.
    """
    lo, hi = span.lo, span.hi
    owned = slices(hi if span.bucket is None else span.bucket.count, owners, unit)
    return [(min(max(first, lo), hi) - lo, min(max(end, lo), hi) - lo) for first, end in owned]
