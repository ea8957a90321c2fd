"""`Checksums`: a rank's checksums of its values; `differences`: keys and ranks that differ."""

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
    """One rank's checksums of some keys, a column for each key.

    Attributes
    ----------
    held : ndarray of uint64, shape (keys,)
        Checksum of the value in the store.
    lowest, highest : ndarray of uint64, shape (keys,)
        Extremes of the checksums of all arrays into which the rank has pulled the value.
    held_comparable, pulled_comparable : ndarray of bool, shape (keys,)
        Whether `held`, or `lowest` and `highest`, can be compared with other ranks'.
    """

    held: NDArray[Any]
    lowest: NDArray[Any]
    highest: NDArray[Any]
    held_comparable: NDArray[Any]
    pulled_comparable: NDArray[Any]

    @classmethod
    def blank(cls, count: int) -> Checksums:
        """Return empty checksums of `count` keys, none of which can be compared."""
        highest = np.zeros(count, np.uint64)
        lowest = np.full(count, np.iinfo(np.uint64).max, np.uint64)
        flags = np.zeros((2, count), bool)
        return cls(np.zeros(count, np.uint64), lowest, highest, flags[0], flags[1])


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


def differences(all_ranks: Sequence[Checksums], keys: Sequence[Key], root: int) -> list[Difference]:
    """Return the keys that differ between ranks, of the keys that all ranks can compare."""
    held, lowest, highest = (np.stack([each[row] for each in all_ranks]) for row in range(3))
    held_comparable = np.logical_and.reduce([each.held_comparable for each in all_ranks])
    pulled_comparable = np.logical_and.reduce([each.pulled_comparable for each in all_ranks])
    held_differs = (held != held[0]).any(axis=0) & held_comparable
    pulled_differs = (lowest != lowest[0]).any(axis=0) | (highest != highest[0]).any(axis=0)
    pulled_differs &= pulled_comparable
    found = []
    for number in np.flatnonzero(held_differs | pulled_differs).tolist():
        pulled = [*zip(lowest[:, number].tolist(), highest[:, number].tolist(), strict=True)]
        found.append(
            Difference(
                keys[number],
                _minority(held[:, number].tolist(), root) if held_differs[number] else (),
                _minority(pulled, root) if pulled_differs[number] else (),
            )
        )
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
