"""`NodeReduction`: sums of encoded gradients with one sender a node.

A rank uses its residuals in its slice of a bucket alone; all others stay 0.  A slice depends on the
bucket alone, so that what is owed stays on its rank whatever keys are pushed together.  Such keys
stay in their buckets.  The residuals of a node, added, are what the node owes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.decoded import Nodes
from ncclkv.comm.programs.extents import Extents
from ncclkv.comm.programs.node_sum import NodeSum, node_form
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.base import Codec
from ncclkv.engine.node_blocks import blocks_of
from ncclkv.engine.node_coders import NodeCoder
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.kernels.base import Arrays
from ncclkv.table.bucket import Bucket, Entry

_NOTHING = np.empty(0, np.uint8)


class NodeReduction:
    """The reduction of the keys of a bucket that have one codec, whose senders are nodes.

    The ranges of a bucket use parts of one payload, as in `CodedReduction`.

    Parameters
    ----------
    comm : Communicator
        Of several nodes.
    codec : Codec
    bucket : Bucket
    residuals : Residuals
    coder : NodeCoder
        Encodes the sums of nodes, and decodes their sum.
    """

    reads_once = False

    def __init__(
        self,
        comm: Communicator,
        codec: Codec,
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
        self._owned = coder.slices(bucket, min(map(len, self._nodes)))
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
        return self._comm.kernels.empty((min(hi - lo, self._coder.block),), self._bucket.dtype)

    @cached_property
    def _extents(self) -> Extents:
        """The bytes of the bucket's elements in payloads."""
        return self._coder.extents(self._bucket.entries, 0)

    @cached_property
    def _payload(self) -> Buffer:
        """The codes of this rank's slice."""
        return self._comm.allocate(_size(self._extents.codes(self._slice)))

    @cached_property
    def _packed(self) -> Buffer:
        """The packed counts of this rank's slice."""
        return self._comm.allocate(_size(self._packed_at(self._slice)))

    def _packed_at(self, bounds: Range) -> Range:
        """Return the bytes of elements among the packed counts of the bucket."""
        return self._extents.packed(bounds, len(self._nodes))

    def _start(self, extent: Callable[[Range], Range], bounds: Range) -> int:
        """Return the first byte of elements in the memory of this rank's slice."""
        return max(extent(bounds)[0] - extent(self._slice)[0], 0)

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        comm = self._comm
        ranks = frozenset(range(comm.size)) if senders is None else senders
        form = node_form(
            self._coder.extents(span.entries, span.lo),
            slices_of(span, self._owned),
            ranks,
            span.to,
            self._nodes,
            shared=span.node_shared,
            itemsize=span.gradients.itemsize,
        )
        lo, hi = bounds = form.slice_of(comm.rank)
        within, packed = (span.lo + lo, span.lo + hi), _NOTHING
        start = self._start(self._extents.codes, within)
        payload = self._payload[start : start + _size(self._extents.codes(within))]
        if form.packs:
            start = self._start(self._packed_at, within)
            packed = self._packed[start : start + form.packed(bounds)]
        encode = self._encoding(span, bounds, payload, op, len(ranks))
        result = self._coder.result(span, receive, form, op, form.longest(comm.rank))
        made = NodeSum(span.gradients, encode, payload, result, form, packed)
        return comm.program(
            made.steps,
            what=f"a {self.codec.name} sum of nodes",
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
        blocks = blocks_of(span, bounds, kept, self._coder.block)
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
    parts = [(max(lo, span.lo) - span.lo, min(hi, span.hi) - span.lo) for lo, hi in owned]
    return [(lo, hi) if lo < hi else (0, 0) for lo, hi in parts]


def _size(extent: Range) -> int:
    """Return the bytes of an extent."""
    return extent[1] - extent[0]
