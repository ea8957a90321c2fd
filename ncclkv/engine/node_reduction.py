"""`NodeReduction`: sums of encoded gradients with one sender a node.

A rank uses its residuals in its slice of a bucket alone; all others stay 0.  A slice depends on the
bucket alone, so that what is owed stays on its rank whatever keys are pushed together.  Such keys
stay in their buckets.  The residuals of a node, added, are what the node owes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.programs.coded_sum import Nodes
from ncclkv.comm.programs.node_sum import NodeSum, node_form
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import BLOCK, FoundOnHost
from ncclkv.compress.entries import Padding, encode_entries
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.residuals import Residuals
from ncclkv.engine.saturation import Saturation
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
    codec : CountedCodec
    bucket : Bucket
    residuals : Residuals
    saturation : Saturation
        On the ranks of the first node it warns.
    """

    reads_once = False

    def __init__(
        self,
        comm: Communicator,
        codec: CountedCodec,
        bucket: Bucket,
        residuals: Residuals,
        saturation: Saturation,
    ) -> None:
        self.codec = codec
        self._comm = comm
        self._bucket = bucket
        self._nodes: Nodes = comm.nodes or ()
        self._residuals = residuals
        self._saturation = saturation

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
        form = node_form(codec, node_slices, ranks, span.to, self._nodes, shared=span.node_shared)
        lo, hi = form.slice_of(comm.rank)
        start = codec.nbytes(span.lo + lo)
        payload, packed = self._payload[start : start + codec.nbytes(hi - lo)], _NOTHING
        if form.packs:
            start = self._packed_at(span.lo + lo)
            packed = self._packed[start : start + form.packed(hi - lo)]
        bounds = [(entry.lo - span.lo, entry.hi - span.lo) for entry in span.entries]
        made = NodeSum(
            span.gradients,
            partial(self._encode, blocks_of(span, (lo, hi)), payload),
            payload,
            Padding(bounds, span.hi - span.lo),
            receive,
            form,
            op == "avg",
            packed,
        )
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

    def _encode(self, blocks: Sequence[Block], payload: Buffer, arrays: Arrays) -> None:
        """Add the arrays of the ranks of this node, and encode their sum into the payload."""
        codec, residual = self.codec, self._residuals.of
        total: Buffer = np.empty(min(BLOCK, arrays[0].size), np.float32)
        beyond: dict[Entry, int] = {}
        held: dict[Entry, int] = {}
        for lo, hi, entries, bounds, owed in blocks:
            summed = total[: hi - lo]
            self._comm.kernels.reduce([array[lo:hi] for array in arrays], summed, "sum")
            residuals = [
                residual(entry.spec)[slice(*each)]
                for entry, each in zip(entries, owed, strict=True)
            ]
            codes = payload[codec.nbytes(lo) : codec.nbytes(hi)]
            gradients = [summed[slice(*each)] for each in bounds]
            counts = encode_entries(codec, bounds, gradients, residuals, codes)
            for entry, count, (first, end) in zip(entries, counts, owed, strict=True):
                beyond[entry] = beyond.get(entry, 0) + count
                held[entry] = held.get(entry, 0) + end - first
        if beyond:
            # The part of a key in this slice stands for the whole key.
            counts = [count * entry.spec.size // held[entry] for entry, count in beyond.items()]
            self._saturation.note(codec, [*beyond], FoundOnHost(counts, [total]))


class Block(NamedTuple):
    """A range of a slice that is added and encoded while it is in the cache.

    Attributes
    ----------
    lo, hi : int
        Its elements, counted from the first of the slice.
    entries : sequence of Entry
        The keys that have elements there.
    bounds : sequence of (int, int)
        The elements of each of these keys, counted from `lo`.
    owed : sequence of (int, int)
        The same elements, counted from the first of the key.
    """

    lo: int
    hi: int
    entries: list[Entry]
    bounds: list[Range]
    owed: list[Range]


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


def blocks_of(span: Span, bounds: Range) -> list[Block]:
    """Return the blocks of a slice of a span."""
    begin, end = bounds
    blocks = [
        Block(lo - begin, min(lo + BLOCK, end) - begin, [], [], [])
        for lo in range(begin, end, BLOCK)
    ]
    for entry in span.entries:
        first = entry.lo - span.lo
        lo, hi = max(first, begin), min(first + entry.spec.size, end)
        while lo < hi:
            block = blocks[(lo - begin) // BLOCK]
            stop = min(hi, block.hi + begin)
            block.entries.append(entry)
            block.bounds.append((lo - begin - block.lo, stop - begin - block.lo))
            block.owed.append((lo - first, stop - first))
            lo = stop
    return blocks
