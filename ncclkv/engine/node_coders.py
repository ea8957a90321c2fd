"""`NodeCoder`: encodes the sums of nodes, and decodes their sum: one class for each form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from ncclkv.arrays.dtypes import named
from ncclkv.comm.programs.decoding import Decoding, PayloadSum
from ncclkv.comm.programs.half_decoding import HalfDecoding
from ncclkv.comm.programs.node_sum import NodeForm
from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import BLOCK, FoundOnHost
from ncclkv.compress.entries import Padding, encode_entries
from ncclkv.compress.half import Half
from ncclkv.engine.reduction import Span
from ncclkv.engine.residuals import Residuals
from ncclkv.engine.saturation import Saturation
from ncclkv.kernels.base import Arrays, Kernels
from ncclkv.table.bucket import Entry

Encode = Callable[[Arrays], None]
"""``encode(arrays)`` fills a payload with the sum of a slice of the arrays of a node's ranks."""


class NodeCoder(Protocol):
    """The arithmetic of a codec whose senders are nodes."""

    def encode(self, blocks: Sequence[Block], payload: Buffer, op: str, ranks: int) -> Encode:
        """Return the function that adds and encodes a slice, at each launch.

        Parameters
        ----------
        blocks : sequence of Block
            The slice.
        payload : ndarray of uint8
        op : str
        ranks : int
            The count of ranks that send.
        """

    def result(self, span: Span, receive: Buffer, form: NodeForm, op: str) -> PayloadSum:
        """Return what writes the sum of a span's payloads to `receive`."""


class CountedNodes:
    """Codes that are counted.

    Parameters
    ----------
    codec : CountedCodec
    kernels : Kernels
    saturation : Saturation
        On the ranks of the first node it warns.
    """

    def __init__(self, codec: CountedCodec, kernels: Kernels, saturation: Saturation) -> None:
        self._codec = codec
        self._kernels = kernels
        self._saturation = saturation

    def encode(self, blocks: Sequence[Block], payload: Buffer, op: str, ranks: int) -> Encode:
        return partial(self._encode, blocks, payload)

    def result(self, span: Span, receive: Buffer, form: NodeForm, op: str) -> PayloadSum:
        bounds = [(entry.lo - span.lo, entry.hi - span.lo) for entry in span.entries]
        padding = Padding(bounds, span.hi - span.lo)
        divisor = len(form.senders) if op == "avg" else None
        return Decoding(self._codec, len(form.sending), padding, receive, divisor)

    def _encode(self, blocks: Sequence[Block], payload: Buffer, arrays: Arrays) -> None:
        """Add the arrays of the ranks of this node, and encode their sum into the payload."""
        codec = self._codec
        total: Buffer = np.empty(min(BLOCK, arrays[0].size), np.float32)
        beyond: dict[Entry, int] = {}
        held: dict[Entry, int] = {}
        for lo, hi, entries, bounds, residuals in blocks:
            summed = total[: hi - lo]
            self._kernels.reduce([array[lo:hi] for array in arrays], summed, "sum")
            codes = payload[codec.nbytes(lo) : codec.nbytes(hi)]
            gradients = [summed[slice(*each)] for each in bounds]
            counts = encode_entries(codec, bounds, gradients, residuals, codes)
            for entry, count, (first, end) in zip(entries, counts, bounds, strict=True):
                beyond[entry] = beyond.get(entry, 0) + count
                held[entry] = held.get(entry, 0) + end - first
        if beyond:
            # The part of a key in this slice stands for the whole key.
            counts = [count * entry.spec.size // held[entry] for entry, count in beyond.items()]
            self._saturation.note(codec, [*beyond], FoundOnHost(counts, [total]))


class HalfNodes:
    """Floats of 16 bits.

    Parameters
    ----------
    codec : Half
    kernels : Kernels
    """

    def __init__(self, codec: Half, kernels: Kernels) -> None:
        self._codec = codec
        self._kernels = kernels
        self._dtype = named(codec.wire_dtype, codec.name)

    def encode(self, blocks: Sequence[Block], payload: Buffer, op: str, ranks: int) -> Encode:
        words = payload.view(self._dtype)
        return partial(self._encode, blocks, words, op, ranks)

    def result(self, span: Span, receive: Buffer, form: NodeForm, op: str) -> PayloadSum:
        return HalfDecoding(self._codec, _summed(op), receive, self._kernels)

    def _encode(
        self, blocks: Sequence[Block], words: Buffer, op: str, ranks: int, arrays: Arrays
    ) -> None:
        """Add the arrays of the ranks of this node, and round their sum."""
        dtype = arrays[0].dtype
        total = self._kernels.empty((min(BLOCK, arrays[0].size),), dtype)
        for block in blocks:
            summed = total[: block.hi - block.lo]
            parts = [array[block.lo : block.hi] for array in arrays]
            self._kernels.reduce(parts, summed, _summed(op))
            if op == "avg":  # before the rounding, so that no average overflows
                self._kernels.divide(summed, ranks)
            rounded = words[block.lo : block.hi]
            if not self._codec.keeps_residual:
                self._codec.encode(summed, None, rounded)
                continue
            rounded[...] = 0
            for bounds, residual in zip(block.bounds, block.residuals, strict=True):
                part = slice(*bounds)
                self._codec.encode(summed[part], residual, rounded[part])


def _summed(op: str) -> str:
    """Return the op of sums that are divided apart from them."""
    return "sum" if op == "avg" else op


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
    residuals : sequence of ndarray of float32
        What is owed of these elements; empty if nothing is kept.
    """

    lo: int
    hi: int
    entries: list[Entry]
    bounds: list[Range]
    residuals: list[Buffer]


def blocks_of(span: Span, bounds: Range, residuals: Residuals | None) -> list[Block]:
    """Return the blocks of a slice of a span, with what `residuals` keeps of the keys."""
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
            if residuals is not None:
                block.residuals.append(residuals.of(entry.spec)[lo - first : stop - first])
            lo = stop
    return blocks
