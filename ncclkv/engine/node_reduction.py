"""`NodeReduction`: sums of encoded gradients with one sender a node.

A rank uses its residuals in its slice of a bucket alone; all others stay 0.  A slice depends on the
bucket alone, so that what is owed stays on its rank whatever keys are pushed together.  Such keys
stay in their buckets.  The residuals of a node, added, are what the node owes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ncclkv.compress.coding import coding_of
from ncclkv.engine.node_blocks import blocks_of
from ncclkv.engine.node_coders import NodeCoder
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.kernels.base import Arrays
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
        self._neighbours = next(ranks for ranks in self._nodes if comm.rank in ranks)
        self._owned = slices(bucket.count, min(map(len, self._nodes)), codec.unit)
        self._block = coding_of(comm.kernels).block
        self._residuals = residuals

    @cached_property
    def _slice(self) -> Range:
        """The elements of the bucket that this rank encodes."""
        index = self._neighbours.index(self._comm.rank)
        return self._owned[index] if index < len(self._owned) else (0, 0)

    @cached_property
    def _total(self) -> Buffer:
        """Memory for the sum of a block of this rank's slice: launches use it one by one."""
        lo, hi = self._slice
        return self._comm.kernels.empty((min(hi - lo, self._block),), self._bucket.dtype)

    @cached_property
    def _payload(self) -> Buffer:
        """The codes of this rank's slice."""
        lo, hi = self._slice
        return self._comm.allocate(self.codec.nbytes(hi - lo))

    @cached_property
    def _packed(self) -> Buffer:
        """The packed counts of this rank's slice."""
        lo, hi = self._slice
        return self._comm.allocate(self._packed_at(hi - lo))

    def _packed_at(self, element: int) -> int:
        """Return the position of the packed counts from an element of the slice on."""
        return self.codec.packed_nbytes(element, len(self._nodes))

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm, codec = self._comm, self.codec
        ranks = frozenset(range(comm.size)) if senders is None else senders
        form = node_form(
            codec,
            slices_of(span, self._owned),
            ranks,
            span.to,
            self._nodes,
            shared=span.node_shared,
            itemsize=span.gradients.itemsize,
        )
        lo, hi = form.slice_of(comm.rank)
        first = max(span.lo + lo - self._slice[0], 0)
        start = codec.nbytes(first)
        payload, packed = self._payload[start : start + codec.nbytes(hi - lo)], _NOTHING
        if form.packs:
            start = self._packed_at(first)
            packed = self._packed[start : start + form.packed(hi - lo)]
        encode = self._encoding(span, (lo, hi), payload, op, len(ranks))
        result = self._coder.result(span, receive, form, op, form.longest(comm.rank))
        made = NodeSum(span.gradients, encode, payload, result, form, packed)
        return comm.program(
            made.steps,
            what=f"a {codec.name} sum of nodes",
            nbytes=span.gradients.nbytes,
            scratch=form.scratch(comm.rank),
            sent=partial(form.sent, comm.rank),
            kept=[made],
        )

    def _encoding(
        self, span: Span, bounds: Range, payload: Buffer, op: str, ranks: int
    ) -> Callable[[Arrays], object]:
        """Return the function that adds and encodes this rank's slice of a span, at each launch."""
        residuals = self._residuals
        kept = residuals if self.codec.keeps_residual else None
        blocks = blocks_of(span, bounds, kept, self._block)
        encode = self._coder.encode(blocks, self._total, payload, op, ranks)
        return lambda arrays: encode(arrays, residuals.skip)

    def deal_residual(self, entry: Entry) -> None:
        """Give a key's residuals to the ranks of this node in whose slices they lie; collective.

        The residuals that a checkpoint has given to the ranks may be those of other slices.  What
        the node owes, the sum over its ranks, stays the same.
        """
        comm, own = self._comm, self._residuals.of(entry.spec)
        kernels, parts = comm.kernels, [slice(0)] * comm.size
        for rank, (lo, hi) in zip(self._neighbours, self._owned, strict=False):
            first, end = max(lo, entry.lo) - entry.lo, min(hi, entry.hi) - entry.lo
            parts[rank] = slice(first, max(first, end))
        mine = parts[comm.rank]
        received = [own[:0]] * comm.size
        for rank in self._neighbours:
            received[rank] = kernels.empty(own[mine].shape, own.dtype)
        work = comm.all_to_all([own[part] for part in parts], received)
        work.label = f"the residuals of key {entry.key!r}"
        work.wait()
        kernels.fill(own, 0)
        kernels.reduce([received[rank] for rank in self._neighbours], own[mine], "sum")


def slices_of(span: Span, owned: Sequence[Range]) -> list[Range]:
    """Return the part of each slice of a bucket that a span has, counted from its first element."""
    lo, hi = span.lo, span.hi
    return [(min(max(first, lo), hi) - lo, min(max(end, lo), hi) - lo) for first, end in owned]
