"""`NodeCoder`: encodes the sums of nodes, and decodes their sum: one class for each form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ncclkv.arrays.dtypes import named
from ncclkv.comm.programs.decoding import Decoding, PayloadSum
from ncclkv.comm.programs.half_decoding import HalfDecoding
from ncclkv.comm.programs.node_sum import NodeForm
from ncclkv.comm.types import Buffer
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import coding_of
from ncclkv.compress.entries import Padding
from ncclkv.compress.half import Half
from ncclkv.engine.node_blocks import Block, FoundInSlice, SliceEncoding, parts_of
from ncclkv.engine.reduction import Span
from ncclkv.engine.saturation import Saturation
from ncclkv.kernels.base import Array, Arrays, Kernels

Encode = Callable[[Arrays, "Array | None"], object]
"""``encode(arrays, skip)`` fills a payload with the sum of a slice of the arrays of a node's ranks.

`skip` is that of `ncclkv.compress.coding.Encode`.
"""


class NodeCoder(Protocol):
    """The arithmetic of a codec whose senders are nodes."""

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
        self._coding = coding_of(kernels)
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
                self._saturation.note(self._codec, entries, FoundInSlice(found, parts))

        return encode

    def result(
        self, span: Span, receive: Buffer, form: NodeForm, op: str, longest: int
    ) -> PayloadSum:
        bounds = [(entry.lo - span.lo, entry.hi - span.lo) for entry in span.entries]
        padding = Padding(bounds, span.hi - span.lo)
        divisor = len(form.senders) if op == "avg" else None
        return Decoding(self._codec, len(form.sending), padding, receive, divisor, self._coding)


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
        self._coding = coding_of(kernels)
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


def _summed(op: str) -> str:
    """Return the op of sums that are divided apart from them."""
    return "sum" if op == "avg" else op
