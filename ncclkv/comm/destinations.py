"""Destinations of sums: which ranks receive which elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ncclkv.comm.buffers import check_root
from ncclkv.comm.types import Range
from ncclkv.errors import UsageError


class To(ABC):
    """A destination of a sum.

    Attributes
    ----------
    collective : str
        Name of the collective that sends sums there.
    divided : bool
        Whether each rank receives a part of its own; else a rank receives all elements or none.
    root : int or None
        The rank that receives, if it is only one.
    """

    __slots__ = ()

    collective: str
    divided: bool = False

    @property
    def root(self) -> int | None:
        return None

    def receives(self, rank: int) -> bool:
        """Return whether a rank receives elements."""
        return True

    def part(self, rank: int, count: int) -> Range:
        """Return the elements that a rank receives of `count`, if it receives any."""
        return 0, count

    def owner(self, element: int) -> int | None:
        """Return the only rank that receives an element; None if all ranks do."""
        return None

    def within(self, lo: int, hi: int) -> To:
        """Return the destination of elements ``[lo, hi)``, which are then counted from `lo`."""
        return self

    def placed(self, place: Callable[[int], int]) -> To:
        """Return the destination of elements that have moved.

        Parameters
        ----------
        place : callable
            Returns the new place of an element; it keeps their order.
        """
        return self

    @abstractmethod
    def among(self, groups: Sequence[Sequence[int]], index: int) -> To:
        """Return the destination among groups of ranks, for the ranks of one index.

        The ranks of one index, one of each group, sum the same elements: those that the ranks of
        their index receive, or else any.
        """

    @abstractmethod
    def check(self, count: int, size: int) -> None:
        """Refuse a destination that does not fit an array of `count` elements and `size` ranks.

        Raises
        ------
        UsageError
        """


@dataclass(frozen=True, slots=True)
class Everyone(To):
    """Destination of a sum: every rank receives."""

    collective = "allreduce"

    def among(self, groups: Sequence[Sequence[int]], index: int) -> To:
        return self

    def check(self, count: int, size: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Root(To):
    """Destination of a sum: one rank receives.

    Attributes
    ----------
    rank : int
    """

    collective = "reduce"

    rank: int

    @property
    def root(self) -> int:
        return self.rank

    def receives(self, rank: int) -> bool:
        return rank == self.rank

    def owner(self, element: int) -> int:
        return self.rank

    def among(self, groups: Sequence[Sequence[int]], index: int) -> To:
        return Root(next(group for group, ranks in enumerate(groups) if self.rank in ranks))

    def check(self, count: int, size: int) -> None:
        check_root(self.rank, size)


@dataclass(frozen=True, slots=True)
class Owners(To):
    """Destination of a sum: every rank receives a part of its own.

    Attributes
    ----------
    bounds : sequence of int
        Rank r receives elements ``[bounds[r], bounds[r + 1])``; parts may be empty.
    """

    collective = "reduce_scatter"
    divided = True

    bounds: Sequence[int]

    def part(self, rank: int, count: int) -> Range:
        return self.bounds[rank], self.bounds[rank + 1]

    def owner(self, element: int) -> int:
        """Return the rank that receives an element; some rank for an element past the end."""
        return min(bisect_right(self.bounds, element), len(self.bounds) - 1) - 1

    def within(self, lo: int, hi: int) -> Owners:
        """Return the owners of elements ``[lo, hi)``, which are then counted from `lo`.

        Examples
        --------
        >>> Owners([0, 4, 8, 12]).within(2, 8)
        Owners(bounds=[0, 2, 6, 6])
        """
        return Owners([min(max(bound, lo), hi) - lo for bound in self.bounds])

    def placed(self, place: Callable[[int], int]) -> Owners:
        return Owners([place(bound) for bound in self.bounds])

    def among(self, groups: Sequence[Sequence[int]], index: int) -> Owners:
        """Return the owners among groups: each has the part of its rank of that index.

        Examples
        --------
        >>> Owners([0, 1, 3, 6, 10]).among([[0, 1], [2, 3]], 1)
        Owners(bounds=[0, 2, 6])
        """
        parts = [self.part(each[index], 0) for each in groups]
        return Owners([0, *accumulate(hi - lo for lo, hi in parts)])

    def check(self, count: int, size: int) -> None:
        bounds = list(self.bounds)
        ends = bounds[:1] + bounds[-1:]
        if len(bounds) != size + 1 or ends != [0, count] or bounds != sorted(bounds):
            raise UsageError(
                f"bounds={self.bounds!r} do not cut {count} elements into a part for each rank: "
                f"give {size + 1} ascending ints, the first 0 and the last {count}"
            )


EVERYONE = Everyone()


def bounds_of(to: To, count: int, size: int) -> list[int]:
    """Return the bounds of the parts that the ranks receive of `count` elements."""
    return [0, *(to.part(rank, count)[1] for rank in range(size))]
