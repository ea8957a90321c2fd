"""What the ranks of a store hold of the same keys, compared: who differs, and in which words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.comm.diagnosis.reports import format_ranks
from ncclkv.table.registry import Key

HELD, LEAST, GREATEST = range(3)
"""Rows of `Checksums.sums`: of the value, and the least and greatest of what was pulled of it."""

PULLED = 1
"""The second row of `Checksums.counts`; the first is `HELD`."""

# So many keys are shown in a message, and so many ranks; the rest are counted.
_SHOWN = 4


class Checksums(NamedTuple):
    """What one rank says of some keys.

    Attributes
    ----------
    sums : ndarray of uint64, shape (3, keys)
    counts : ndarray of bool, shape (2, keys)
        Whether what it holds, and what it has pulled, can be compared with other ranks'.
    """

    sums: NDArray[Any]
    counts: NDArray[Any]


class Difference(NamedTuple):
    """A key that not all ranks have alike.

    Attributes
    ----------
    key : int or str
    held, pulled : tuple of int
        Ranks in the wrong by what they hold, and by what they have pulled.
    """

    key: Key
    held: tuple[int, ...]
    pulled: tuple[int, ...]


def blank(count: int) -> Checksums:
    """A vote on so many keys in which nothing counts yet."""
    return Checksums(np.zeros((3, count), np.uint64), np.zeros((2, count), bool))


def differences(votes: Sequence[Checksums], keys: Sequence[Key], root: int) -> list[Difference]:
    """The keys that ranks have not alike; what counts on some ranks only is left out."""
    sums = np.stack([vote.sums for vote in votes])
    counts = np.logical_and.reduce([vote.counts for vote in votes])
    differs = (sums != sums[0]).any(axis=0)
    held = differs[HELD] & counts[HELD]
    pulled = (differs[LEAST] | differs[GREATEST]) & counts[PULLED]
    found = []
    for number in np.flatnonzero(held | pulled).tolist():
        said = [tuple(each) for each in sums[:, :, number].tolist()]
        of_held = _odd([each[:LEAST] for each in said], root) if held[number] else ()
        of_pulled = _odd([each[LEAST:] for each in said], root) if pulled[number] else ()
        found.append(Difference(keys[number], of_held, of_pulled))
    return found


def _odd(said: Sequence[Hashable], root: int) -> tuple[int, ...]:
    """Who says something else than most ranks; of several groups as large, the root's is right."""
    sizes = Counter(said)
    most = max(sizes.values())
    right = said[root]
    if sizes[right] < most:
        right = next(each for each in said if sizes[each] == most)
    return tuple(rank for rank, each in enumerate(said) if each != right)


def in_words(found: Sequence[Difference], size: int) -> str:
    """Which keys differ, and whose, of so many ranks."""
    return "; ".join(_of_key(each, size) for each in found[:_SHOWN]) + _more(len(found), "keys")


def _of_key(difference: Difference, size: int) -> str:
    """The same of one key."""
    key, held, pulled = difference
    if held == pulled:
        return f"of key {key!r} {_against(held, size)} (held and pulled)"
    said = [
        f"{_against(odd, size)} ({what})"
        for odd, what in ((held, "held"), (pulled, "pulled"))
        if odd
    ]
    return f"of key {key!r} {', and '.join(said)}"


def _against(odd: tuple[int, ...], size: int) -> str:
    """Odd ranks and the others."""
    others = [rank for rank in range(size) if rank not in odd]
    has = "has" if len(odd) == 1 else "have"
    return f"{format_ranks(odd, _SHOWN)} {has} other bits than {format_ranks(others, _SHOWN)}"


def _more(count: int, what: str) -> str:
    """How many are not shown."""
    return f" and {count - _SHOWN} more {what}" if count > _SHOWN else ""
