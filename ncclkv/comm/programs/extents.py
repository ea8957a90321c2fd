"""`Extents`: the bytes that elements have in payloads, and in the packed sum of several payloads.

Payloads of codes are cut between words.  Payloads of the largest elements are cut between keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ncclkv.comm.programs.decoded import SHORT_BYTES
from ncclkv.comm.two_step import slices
from ncclkv.comm.wire import Range
from ncclkv.compress.base import Payloads
from ncclkv.compress.topk import TopK


class Extents(Protocol):
    """The bytes of elements in the payloads of a range."""

    def codes(self, bounds: Range) -> Range:
        """Return the bytes of a payload from which the elements `bounds` are decoded."""

    def packed(self, bounds: Range, senders: int) -> Range:
        """Return the bytes of `bounds` in a packed sum of as many payloads."""

    def divided(self, node_slices: Sequence[Range], parts: int) -> Sequence[Sequence[Range]] | None:
        """Return the parts of each slice, if as many ranks had better count one part each.

        The packed sums of parts then take fewer bytes than payloads for all these ranks.
        """


@dataclass(frozen=True)
class Words:
    """The extents of codes that lie in words, such as those of `CountedCodec`.

    Attributes
    ----------
    codec : Payloads
    """

    codec: Payloads

    def codes(self, bounds: Range) -> Range:
        lo, hi = bounds
        return self.codec.nbytes(word(lo, self.codec.unit)), self.codec.nbytes(hi)

    def packed(self, bounds: Range, senders: int) -> Range:
        lo, hi = bounds
        return self.codec.packed_nbytes(lo, senders), self.codec.packed_nbytes(hi, senders)

    def divided(self, node_slices: Sequence[Range], parts: int) -> Sequence[Sequence[Range]] | None:
        longest = max(hi - lo for lo, hi in node_slices)
        if not counts_save(self.codec, parts) or self.codec.nbytes(longest) <= SHORT_BYTES:
            return None
        return [slices(hi - lo, parts, self.codec.unit, lo) for lo, hi in node_slices]


@dataclass(frozen=True)
class KeyExtents:
    """The extents of payloads that have the largest elements of each key, key by key.

    A packed sum has the payloads of all senders one after another: elements of other indices are
    not added before each rank adds them.

    Attributes
    ----------
    codec : TopK
    entries : sequence of (int, int)
        The elements of each key, in their order; no key is empty.

    Examples
    --------
    >>> extents = KeyExtents(TopK(ratio=0.5), [(0, 6), (64, 66)])
    >>> extents.codes((0, 70)), extents.codes((64, 65)), extents.codes((6, 60))
    ((0, 32), (24, 32), (24, 24))
    """

    codec: TopK
    entries: Sequence[Range]

    @cached_property
    def _ends(self) -> list[int]:
        return self.codec.ends(hi - lo for lo, hi in self.entries)

    def within(self, bounds: Range) -> Sequence[Range]:
        """Return the entries that have elements in `bounds`."""
        first, end = self._indices(bounds)
        return self.entries[first:end]

    def _indices(self, bounds: Range) -> Range:
        """Return the indices of the entries that have elements in `bounds`."""
        lo, hi = bounds
        first = bisect_right(self.entries, lo, key=lambda entry: entry[1])
        return first, max(first, bisect_left(self.entries, hi, key=lambda entry: entry[0]))

    def codes(self, bounds: Range) -> Range:
        first, end = self._indices(bounds)
        return self._ends[first], self._ends[end]

    def packed(self, bounds: Range, senders: int) -> Range:
        begin, end = self.codes(bounds)
        return senders * begin, senders * end

    def divided(self, node_slices: Sequence[Range], parts: int) -> None:
        return None


def counts_save(codec: Payloads, senders: int) -> bool:
    """Return whether sums of so many senders take fewer bytes in two steps.

    Else each sends its codes to all others.  In two steps it sends its codes once, and the counts
    of its slice to all.
    """
    bits = codec.nbytes(codec.unit) * 8 // codec.unit
    return bits * senders > bits + codec.width(senders)


def word(element: int, unit: int) -> int:
    """Return the first element of the word that has the code of an element."""
    return element // unit * unit
