"""`Decoding`: the sum of codes of several senders, as one rank counts, packs and writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ncclkv.comm.types import Apply, Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.base import CountedCodec
from ncclkv.compress.entries import Padding

BLOCK = 64 * 1024
"""Elements that are decoded and updated at once: they stay in the cache."""

Blocks = Iterable[tuple[int, int, Buffer]]
"""Ranges of elements, and their counts, which are valid until the next range."""


@dataclass(eq=False)
class Decoding:
    """The sum of the codes of an array.

    Attributes
    ----------
    codec : CountedCodec
    senders : int
        The number of payloads that are summed.
    padding : Padding
        The elements that are not encoded: their sum is 0.
    receive : ndarray of float32, shape (n,)
        Receives the elements of the sum that this rank decodes.
    divisor : int or None
        The number that the sum is divided by.
    """

    codec: CountedCodec
    senders: int
    padding: Padding
    receive: Buffer
    divisor: int | None = None
    _counts: Buffer = field(init=False)

    def __post_init__(self) -> None:
        self._counts = np.empty(min(BLOCK, self.receive.size), np.uint16)

    def count(self, payloads: Sequence[Buffer], bounds: Range) -> Iterator[tuple[int, int, Buffer]]:
        """Yield `Blocks` of the elements `bounds`, from the codes of all senders.

        The first code in each of the `payloads` is that of the first element of a word.
        """
        codec, (begin, end) = self.codec, bounds
        first = word(begin, codec.unit)
        for start in range(first, end, BLOCK) if begin < end else ():
            stop = min(start + BLOCK, end)
            lo, hi = codec.nbytes(start - first), codec.nbytes(stop - first)
            block = self._counts[: stop - start]
            codec.count_sum([payload[lo:hi] for payload in payloads], block)
            skipped = max(begin - start, 0)
            yield start + skipped, stop, block[skipped:]

    def packed(self, count: int) -> int:
        """Return the bytes of the packed counts of as many elements."""
        return self.codec.packed_nbytes(count, self.senders)

    def pack(self, blocks: Blocks, start: int, into: Buffer) -> None:
        """Pack the counts of elements from `start` on."""
        for lo, hi, block in blocks:
            packed = into[self.packed(lo - start) : self.packed(hi - start)]
            self.codec.pack_counts(block, packed, self.senders)

    def unpack(self, packed: Buffer, bounds: Range) -> Iterator[tuple[int, int, Buffer]]:
        """Yield `Blocks` of the elements `bounds`, from their packed counts."""
        first, end = bounds
        for lo in range(first, end, BLOCK):
            hi = min(lo + BLOCK, end)
            block = self._counts[: hi - lo]
            part = packed[self.packed(lo - first) : self.packed(hi - first)]
            self.codec.unpack_counts(part, block, self.senders)
            yield lo, hi, block

    def write(self, blocks: Blocks, apply: Apply | None) -> None:
        """Write the sums of elements, and update them."""
        for lo, hi, block in blocks:
            out = self.receive[lo:hi]
            self.codec.finish(block, self.senders, out)
            if self.divisor is not None:
                out /= np.float32(self.divisor)
            self.padding.clear(lo, out)
            if apply is not None:
                apply(lo, hi)


def counts_save(codec: CountedCodec, senders: int) -> bool:
    """Return whether sums of so many senders take fewer bytes in two steps.

    Else each sends its codes to all others.  In two steps it sends its codes once, and a share of
    the counts to all.
    """
    bits = codec.nbytes(codec.unit) * 8 // codec.unit
    return bits * senders > bits + codec.width(senders)


def word(element: int, unit: int) -> int:
    """Return the first element of the word that has the code of an element."""
    return element // unit * unit
