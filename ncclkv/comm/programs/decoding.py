"""`Decoding`: the sum of codes of several senders, as one rank counts, packs and writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ncclkv.comm.programs.extents import word
from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.coding import Coding, HostCoding
from ncclkv.compress.entries import Padding


class Block(NamedTuple):
    """Elements ``[lo, hi)`` that are decoded at once.

    Attributes
    ----------
    lo, hi : int
    first : int
        The elements before `lo` in the word of its code.
    payloads : sequence of ndarray of uint8
        The codes from this word on, of all senders.
    """

    lo: int
    hi: int
    first: int
    payloads: Sequence[Buffer]


class PayloadSum(Protocol):
    """The sum of the payloads of an array, as one rank writes it or packs it."""

    def write(self, payloads: Sequence[Buffer], bounds: Range, apply: Apply | None) -> None:
        """Write the sums of the elements `bounds`, from the payloads of all senders; update them.

        The first code in each of the `payloads` is that of the first element of a word.
        """

    def pack(self, payloads: Sequence[Buffer], bounds: Range, into: Buffer) -> None:
        """Pack the sums of the elements `bounds`, which begin at a whole word."""

    def write_packed(self, packed: Buffer, bounds: Range, apply: Apply | None) -> None:
        """Write the sums of the elements `bounds`, from a packed sum of them; update them."""


@dataclass(eq=False)
class Decoding:
    """The sum of the codes of an array, a `PayloadSum`.

    Attributes
    ----------
    codec : CountedCodec
    senders : int
        The count of payloads that are summed.
    padding : Padding
        The elements that are not encoded: their sum is 0.
    receive : ndarray of float32, shape (n,)
        Receives the elements of the sum that this rank decodes.
    divisor : int or None
        The count that the sum is divided by.
    coding : Coding
        The arithmetic in the memory of the arrays.
    """

    codec: CountedCodec
    senders: int
    padding: Padding
    receive: Buffer
    divisor: int | None = None
    coding: Coding = field(default_factory=HostCoding)

    def packed(self, count: int) -> int:
        """Return the bytes of the packed counts of as many elements."""
        return self.codec.packed_nbytes(count, self.senders)

    def write(self, payloads: Sequence[Buffer], bounds: Range, apply: Apply | None) -> None:
        for lo, hi, first, parts in self._blocks(payloads, bounds):
            out = self.receive[lo:hi]
            self.coding.decode(self.codec, parts, first, out, self.divisor)
            self._end(lo, hi, out, apply)

    def pack(self, payloads: Sequence[Buffer], bounds: Range, into: Buffer) -> None:
        start = bounds[0]
        for lo, hi, _, parts in self._blocks(payloads, bounds):
            packed = into[self.packed(lo - start) : self.packed(hi - start)]
            self.coding.pack(self.codec, parts, hi - lo, packed)

    def write_packed(self, packed: Buffer, bounds: Range, apply: Apply | None) -> None:
        first, end = bounds
        for lo in range(first, end, self.coding.block):
            hi = min(lo + self.coding.block, end)
            part = packed[self.packed(lo - first) : self.packed(hi - first)]
            out = self.receive[lo:hi]
            self.coding.unpack(self.codec, part, self.senders, out, self.divisor)
            self._end(lo, hi, out, apply)

    def _blocks(self, payloads: Sequence[Buffer], bounds: Range) -> Iterator[Block]:
        """Yield the elements `bounds`, with their codes."""
        codec, size, (begin, end) = self.codec, self.coding.block, bounds
        first = word(begin, codec.unit)
        for start in range(first, end, size) if begin < end else ():
            stop = min(start + size, end)
            lo, hi = codec.nbytes(start - first), codec.nbytes(stop - first)
            skipped = max(begin - start, 0)
            parts = [payload[lo:hi] for payload in payloads]
            yield Block(start + skipped, stop, skipped, parts)

    def _end(self, lo: int, hi: int, out: Buffer, apply: Apply | None) -> None:
        """Clear the padding among written elements, and update them."""
        self.coding.clear(self.padding, lo, out)
        if apply is not None:
            apply(lo, hi)
