"""`NodeCoder`: encodes the sums of nodes, and decodes their sum: one class for each form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from ncclkv.arrays.dtypes import named
from ncclkv.comm.programs.decoding import Decoding, PayloadSum
from ncclkv.comm.programs.extents import Extents, KeyExtents, Words
from ncclkv.comm.programs.half_decoding import HalfDecoding
from ncclkv.comm.programs.node_sum import NodeForm
from ncclkv.comm.programs.top_decoding import TopDecoding
from ncclkv.comm.two_step import slices
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.base import CountedCodec, Payloads
from ncclkv.compress.coding import coding_of
from ncclkv.compress.entries import Padding
from ncclkv.compress.half import Half
from ncclkv.compress.topk import TopK
from ncclkv.engine.node_blocks import Block, SliceEncoding, found_in_slice, parts_of
from ncclkv.engine.reduction import Span
from ncclkv.engine.saturation import Saturation
from ncclkv.engine.top_reduction import bounds_of
from ncclkv.kernels.base import Array, Arrays, Kernels
from ncclkv.table import plan
from ncclkv.table.bucket import Bucket, Entry

Encode = Callable[[Arrays, "Array | None"], object]
"""``encode(arrays, skip)`` fills a payload with the sum of a slice of the arrays of a node's ranks.

`skip` is that of `ncclkv.compress.coding.Encode`.
"""


class NodeCoder(Protocol):
    """The payloads of a codec whose senders are nodes, and their arithmetic.

    Attributes
    ----------
    block : int
        The most elements that are added and encoded at once.
    """

    block: int

    def slices(self, bucket: Bucket, owners: int) -> list[Range]:
        """Return the elements of a bucket that each of so many ranks of a node encodes."""

    def extents(self, entries: Sequence[Entry], start: int) -> Extents:
        """Return the bytes in payloads of elements, counted from the element `start` of a bucket.

        Parameters
        ----------
        entries : sequence of Entry
            The keys in the payloads.
        start : int
        """

    def encode(
        self, blocks: Sequence[Block], total: Buffer, payload: Buffer, op: str, ranks: int
    ) -> Encode:
        """Return the function that adds and encodes a slice, at each launch.

        Parameters
        ----------
        blocks : sequence of Block
            The slice.
        total : ndarray
            Memory for the sum of a block.
        payload : ndarray of uint8
        op : str
        ranks : int
            The count of ranks that send.
        """

    def result(
        self, span: Span, receive: Buffer, form: NodeForm, op: str, longest: int
    ) -> PayloadSum:
        """Return what writes the sum of a span's payloads to `receive`.

        Parameters
        ----------
        span : Span
        receive : ndarray
        form : NodeForm
        op : str
        longest : int
            The most elements that are written from payloads at once.
        """


class WordNodes:
    """The payloads of codes in words, which are cut into slices of nearly equal length.

    Parameters
    ----------
    codec : Payloads
    kernels : Kernels
    """

    def __init__(self, codec: Payloads, kernels: Kernels) -> None:
        self._words = Words(codec)
        self._kernels = kernels
        self._coding = coding_of(kernels)
        self.block = self._coding.block

    def slices(self, bucket: Bucket, owners: int) -> list[Range]:
        return slices(bucket.count, owners, self._words.codec.unit)

    def extents(self, entries: Sequence[Entry], start: int) -> Words:
        return self._words


class CountedNodes(WordNodes):
    """Codes that are counted.

    Parameters
    ----------
    codec : CountedCodec
    kernels : Kernels
    saturation : Saturation
        On the ranks of the first node it warns.
    """

    def __init__(self, codec: CountedCodec, kernels: Kernels, saturation: Saturation) -> None:
        super().__init__(codec, kernels)
        self._codec = codec
        self._saturation = saturation

    def encode(
        self, blocks: Sequence[Block], total: Buffer, payload: Buffer, op: str, ranks: int
    ) -> Encode:
        nbytes = self._codec.nbytes
        encodings = [
            self._coding.encoding(
                self._codec,
                block.bounds,
                total[: block.hi - block.lo],
                block.residuals,
                payload[nbytes(block.lo) : nbytes(block.hi)],
            )
            for block in blocks
        ]
        run = SliceEncoding(self._kernels, blocks, total, "sum", encodings)
        parts = parts_of(blocks)
        entries = [part.entry for part in parts]

        def encode(arrays: Arrays, skip: Array | None) -> None:
            if found := run(arrays, skip):
                self._saturation.note(self._codec, entries, found_in_slice(found, parts))

        return encode

    def result(
        self, span: Span, receive: Buffer, form: NodeForm, op: str, longest: int
    ) -> PayloadSum:
        bounds = [(entry.lo - span.lo, entry.hi - span.lo) for entry in span.entries]
        padding = Padding(bounds, span.hi - span.lo)
        senders, divisor = len(form.sending), _divisor(form, op)
        return Decoding(self._codec, senders, padding, receive, divisor, self._coding)


class HalfNodes(WordNodes):
    """Floats of 16 bits.

    Parameters
    ----------
    codec : Half
    kernels : Kernels
    """

    def __init__(self, codec: Half, kernels: Kernels) -> None:
        super().__init__(codec, kernels)
        self._codec = codec
        self._dtype = named(codec.wire_dtype, codec.name)

    def encode(
        self, blocks: Sequence[Block], total: Buffer, payload: Buffer, op: str, ranks: int
    ) -> Encode:
        words = payload.view(self._dtype)
        roundings = [
            self._coding.rounding(
                self._codec,
                total[: block.hi - block.lo],
                # Without residuals in one call, with the padding between keys.
                block.bounds if block.residuals else [(0, block.hi - block.lo)],
                block.residuals,
                words[block.lo : block.hi],
            )
            for block in blocks
        ]
        # Divided before the rounding, so that no average overflows.
        divisor = ranks if op == "avg" else None
        return SliceEncoding(self._kernels, blocks, total, _summed(op), roundings, divisor)

    def result(
        self, span: Span, receive: Buffer, form: NodeForm, op: str, longest: int
    ) -> PayloadSum:
        return HalfDecoding(self._codec, _summed(op), receive, self._kernels, longest)


class TopNodes:
    """The largest elements of each key: whole keys are dealt to the ranks of a node.

    Parameters
    ----------
    codec : TopK
    kernels : Kernels
    """

    block = sys.maxsize  # a key is searched as a whole

    def __init__(self, codec: TopK, kernels: Kernels) -> None:
        self._codec = codec
        self._kernels = kernels
        self._coding = coding_of(kernels)

    def slices(self, bucket: Bucket, owners: int) -> list[Range]:
        (bounds,) = plan.divide([bucket], [0] * owners)
        found = [*pairwise(bounds)]
        # Else the first rank of each node would encode all keys that are alone in their buckets.
        first = bucket.index % owners
        return [*found[first:], *found[:first]]

    def extents(self, entries: Sequence[Entry], start: int) -> KeyExtents:
        return KeyExtents(self._codec, bounds_of(entries, start))

    def encode(
        self, blocks: Sequence[Block], total: Buffer, payload: Buffer, op: str, ranks: int
    ) -> Encode:
        takings = [
            self._coding.taking(self._codec, block.bounds, total, block.residuals, payload)
            for block in blocks
        ]
        return SliceEncoding(self._kernels, blocks, total, "sum", takings)

    def result(
        self, span: Span, receive: Buffer, form: NodeForm, op: str, longest: int
    ) -> PayloadSum:
        extents, senders = self.extents(span.entries, span.lo), len(form.sending)
        return TopDecoding(extents, senders, receive, _divisor(form, op), self._kernels)


def _divisor(form: NodeForm, op: str) -> int | None:
    """Return the count of ranks that an average divides a sum by."""
    return len(form.senders) if op == "avg" else None


def _summed(op: str) -> str:
    """Return the op of sums that are divided apart from them."""
    return "sum" if op == "avg" else op
