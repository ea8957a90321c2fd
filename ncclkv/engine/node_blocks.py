"""Blocks of the slice of a node's arrays that a rank encodes: how they are added and encoded.

On a host a block stays in the cache while it is added and encoded.  On a GPU the whole slice is a
block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from ncclkv.comm.types import Buffer
from ncclkv.comm.wire import Range
from ncclkv.compress.coding import Found
from ncclkv.engine.combined_found import CombinedFound
from ncclkv.engine.reduction import Span
from ncclkv.engine.residuals import Residuals
from ncclkv.kernels.base import Array, Arrays, Kernels
from ncclkv.table.bucket import Entry

Made = TypeVar("Made")


class Block(NamedTuple):
    """A range of a slice that is added and encoded at once.

    Attributes
    ----------
    lo, hi : int
        Its elements, counted from the first of the slice.
    entries : sequence of Entry
        The keys that have elements there.
    bounds : sequence of (int, int)
        The elements of each of these keys, counted from `lo`.
    residuals : sequence of array of float32
        What is owed of these elements; empty if nothing is kept.
    """

    lo: int
    hi: int
    entries: list[Entry]
    bounds: list[Range]
    residuals: list[Buffer]


def blocks_of(span: Span, bounds: Range, residuals: Residuals | None, longest: int) -> list[Block]:
    """Return the blocks of a slice of a span that have elements of keys.

    Parameters
    ----------
    span : Span
    bounds : (int, int)
        The slice.
    residuals : Residuals or None
        What is kept of the keys.
    longest : int
        Elements of a block.
    """
    begin, end = bounds
    blocks = [
        Block(lo - begin, min(lo + longest, end) - begin, [], [], [])
        for lo in range(begin, end, longest)
    ]
    for entry in span.entries:
        first = entry.lo - span.lo
        lo, hi = max(first, begin), min(first + entry.spec.size, end)
        while lo < hi:
            block = blocks[(lo - begin) // longest]
            stop = min(hi, block.hi + begin)
            block.entries.append(entry)
            block.bounds.append((lo - begin - block.lo, stop - begin - block.lo))
            if residuals is not None:
                block.residuals.append(residuals.of(entry.spec)[lo - first : stop - first])
            lo = stop
    return [block for block in blocks if block.entries]


@dataclass(frozen=True)
class SliceEncoding(Generic[Made]):
    """Adds the blocks of a slice, and encodes each sum, at each call.

    Attributes
    ----------
    kernels : Kernels
    blocks : sequence of Block
    total : ndarray
        Memory for the sum of a block.
    op : str
        The op that combines the arrays of ranks.
    encodings : sequence of callable
        ``encode(skip)`` of each block encodes the beginning of `total`.
    divisor : int or None
        The count that each sum is divided by.
    """

    kernels: Kernels
    blocks: Sequence[Block]
    total: Buffer
    op: str
    encodings: Sequence[Callable[[Array | None], Made]]
    divisor: int | None = None

    def __call__(self, arrays: Arrays, skip: Array | None) -> list[Made]:
        made = []
        for block, encode in zip(self.blocks, self.encodings, strict=True):
            summed = self.total[: block.hi - block.lo]
            self.kernels.reduce([array[block.lo : block.hi] for array in arrays], summed, self.op)
            if self.divisor is not None:
                self.kernels.divide(summed, self.divisor)
            made.append(encode(skip))
        return made


class Part(NamedTuple):
    """The elements of a key in a slice.

    Attributes
    ----------
    entry : Entry
    held : int
        Their count.
    places : sequence of (int, int)
        The index of each block that has elements of the key, and the key's index there.
    """

    entry: Entry
    held: int
    places: Sequence[tuple[int, int]]


def parts_of(blocks: Sequence[Block]) -> list[Part]:
    """Return the parts of keys that the blocks of a slice have."""
    found: dict[Entry, Part] = {}
    for index, block in enumerate(blocks):
        for place, (entry, (lo, hi)) in enumerate(zip(block.entries, block.bounds, strict=True)):
            _, held, places = found.get(entry, (entry, 0, ()))
            found[entry] = Part(entry, held + hi - lo, (*places, (index, place)))
    return [*found.values()]


def found_in_slice(found: Sequence[Found], parts: Sequence[Part]) -> CombinedFound:
    """Return what the blocks of a slice have found; the counts of a part stand for its whole key.

    Parameters
    ----------
    found : sequence of Found
        Of each block.
    parts : sequence of Part
    """

    def count(index: int) -> int:
        entry, held, places = parts[index]
        beyond = sum(int(found[block].beyond[place]) for block, place in places)
        return beyond * entry.spec.size // held

    return CombinedFound(found, len(parts), count)
