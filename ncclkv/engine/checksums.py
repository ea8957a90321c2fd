"""`Checksums`: a rank's checksums of arrays; `differences`: keys and ranks that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.table.registry import Key

_MAX_SHOWN = 4
"""Number of keys, and of ranks, that a text names; further keys and ranks are counted."""


class Checksums(NamedTuple):
    """One rank's checksums of arrays with the values of some keys, a column for each key.

    Attributes
    ----------
    lowest, highest : ndarray of uint64, shape (keys,)
        Extremes of the checksums of a key's arrays.
    comparable : ndarray of bool, shape (keys,)
        Whether a key can be compared with other ranks.
    """

    lowest: NDArray[Any]
    highest: NDArray[Any]
    comparable: NDArray[Any]

    @classmethod
    def of(cls, count: int, numbers: Sequence[int], sums: NDArray[Any]) -> Checksums:
        """Return the checksums of `count` keys, from the checksum and key number of each array."""
        lowest = np.full(count, np.iinfo(np.uint64).max, np.uint64)
        made = cls(lowest, np.zeros(count, np.uint64), np.zeros(count, bool))
        np.minimum.at(made.lowest, numbers, sums)
        np.maximum.at(made.highest, numbers, sums)
        made.comparable[numbers] = True
        return made


class Difference(NamedTuple):
    """A key whose value is not equal on all ranks.

    Attributes
    ----------
    key : int or str
    held, pulled : tuple of int
        Ranks in the minority by the value in the store, and by the arrays pulled into.
    """

    key: Key
    held: tuple[int, ...]
    pulled: tuple[int, ...]


def differences(
    held: Sequence[Checksums], pulled: Sequence[Checksums], keys: Sequence[Key], root: int
) -> list[Difference]:
    """Return the keys that differ between ranks, of the keys that all ranks can compare.

    Parameters
    ----------
    held, pulled : sequence of Checksums
        Those of each rank's values in the store, and of the arrays into which it has pulled them.
    keys : sequence of keys
    root : int
    """
    in_store, in_arrays = _minorities(held, root), _minorities(pulled, root)
    return [
        Difference(keys[number], in_store.get(number, ()), in_arrays.get(number, ()))
        for number in sorted({*in_store, *in_arrays})
    ]


def _minorities(all_ranks: Sequence[Checksums], root: int) -> dict[int, tuple[int, ...]]:
    """Return the ranks in the minority of each key that differs, by the key's number."""
    lowest, highest, comparable = map(np.stack, zip(*all_ranks, strict=True))
    differs = ((lowest != lowest[0]) | (highest != highest[0])).any(axis=0) & comparable.all(axis=0)
    found = {}
    for number in np.flatnonzero(differs).tolist():
        extremes = zip(lowest[:, number].tolist(), highest[:, number].tolist(), strict=True)
        found[number] = _minority([*extremes], root)
    return found


def _minority(values: Sequence[Hashable], root: int) -> tuple[int, ...]:
    """Return the ranks outside the largest group of equal values; of equal groups, the root's."""
    sizes = Counter(values)
    largest = max(sizes.values())
    right = values[root]
    if sizes[right] < largest:
        right = next(each for each in values if sizes[each] == largest)
    return tuple(rank for rank, each in enumerate(values) if each != right)


def describe(found: Sequence[Difference], size: int) -> str:
    """Return a text of the keys that differ between `size` ranks, with the ranks of each side."""
    text = "; ".join(_describe_key(each, size) for each in found[:_MAX_SHOWN])
    more = len(found) - _MAX_SHOWN
    return f"{text} and {more} more keys" if more > 0 else text


def _describe_key(difference: Difference, size: int) -> str:
    """Return the text of one key."""
    key, held, pulled = difference
    if held == pulled:
        return f"of key {key!r} {_sides(held, size)} (held and pulled)"
    texts = [
        f"{_sides(ranks, size)} ({name})"
        for ranks, name in ((held, "held"), (pulled, "pulled"))
        if ranks
    ]
    return f"of key {key!r} {', and '.join(texts)}"


def _sides(minority: tuple[int, ...], size: int) -> str:
    """Return the text of the ranks in the minority and of the others."""
    others = [rank for rank in range(size) if rank not in minority]
    has = "has" if len(minority) == 1 else "have"
    return (
        f"{format_ranks(minority, _MAX_SHOWN)} {has} other bits than "
        f"{format_ranks(others, _MAX_SHOWN)}"
    )
