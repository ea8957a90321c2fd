"""The scalars of a bucket's update: a row for each range of keys that have equal numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.base import Array, Kernels, Segments
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.counts import UpdateCounts
from ncclkv.table.bucket import Bucket
from ncclkv.typing import Key

_MAX_CUTS = 4096

Cut = tuple[Segments, int, int]
"""Segments of a range of elements, and the first and the last of their rows, exclusive."""


class Rows(Protocol):
    """The scalars of one update of a bucket."""

    def cut(self, kernels: Kernels, lo: int, hi: int) -> tuple[Segments, Array]:
        """Return the segments of elements ``[lo, hi)``, and their rows in the kernels' memory."""


class RowLayout:
    """Segments of a bucket, and which of them have equal rows.

    Parameters
    ----------
    bucket : Bucket
    marks : sequence
        One for each key; keys with equal marks have equal rows.
    by_key : bool
        Whether every key has a segment of its own; else neighbours with equal marks share one.

    Attributes
    ----------
    segments : Segments
        Of the whole bucket.  The padding behind a key is updated with it: zeros stay zeros.
    """

    def __init__(self, bucket: Bucket, marks: Sequence[Hashable], *, by_key: bool = False) -> None:
        groups: dict[Hashable, int] = {}
        self._keys: list[Key] = []
        starts: list[int] = []
        rows: list[int] = []
        for entry, mark in zip(bucket.entries, marks, strict=True):
            group = groups.get(mark)
            if group is None:
                group = groups[mark] = len(groups)
                self._keys.append(entry.key)
            if by_key or not rows or rows[-1] != group:
                starts.append(entry.lo)
                rows.append(group)
        self._bounds = [*starts, bucket.count]
        self._rows = np.array(rows, np.intp)
        self._bucket = bucket
        self._cuts: dict[tuple[int, int], Cut] = {}
        self.segments = Segments(np.array(self._bounds, np.int64))

    def rows(self, optimizer: Optimizer, counts: UpdateCounts) -> NDArray[np.float64]:
        """Return the row of each segment, shape (segments, k), at the keys' counts."""
        # A key that was never updated takes no part in this update: nothing reads its row.
        counted = [max(1, counts.count(self._bucket, key)) for key in self._keys]
        of_groups = [
            optimizer.scalars(key, count) for key, count in zip(self._keys, counted, strict=True)
        ]
        return np.array(of_groups, np.float64)[self._rows]

    def cut(self, lo: int, hi: int) -> Cut:
        """Return the segments of elements ``[lo, hi)``; the same object again for a range."""
        found = self._cuts.get((lo, hi))
        if found is None:
            if len(self._cuts) == _MAX_CUTS:
                self._cuts.clear()
            found = self._cuts[lo, hi] = self._cut(lo, hi)
        return found

    def _cut(self, lo: int, hi: int) -> Cut:
        bounds = self._bounds
        first, last = bisect_right(bounds, lo) - 1, bisect_left(bounds, hi)
        if (lo, hi) == (bounds[0], bounds[-1]):
            return self.segments, 0, len(bounds) - 1
        return Segments(np.array([lo, *bounds[first + 1 : last], hi], np.int64)), first, last


class ScalarRows:
    """The rows of one update, in the memory of the kernels that read them.

    Parameters
    ----------
    layout : RowLayout
    rows : ndarray of float64, shape (segments, k)
        In host memory; copied when the first range is updated.
    """

    def __init__(self, layout: RowLayout, rows: NDArray[np.float64]) -> None:
        self._layout = layout
        self._rows = rows
        self._memory: Array | None = None
        self._last: tuple[tuple[int, int], tuple[Segments, Array]] | None = None

    def cut(self, kernels: Kernels, lo: int, hi: int) -> tuple[Segments, Array]:
        """Return the segments of elements ``[lo, hi)``, and their rows in the kernels' memory."""
        if self._last is not None and self._last[0] == (lo, hi):
            return self._last[1]
        if self._memory is None:
            # Allocated where the update runs: CuPy's pools reuse memory in the order of the stream.
            self._memory = kernels.empty(self._rows.shape, self._rows.dtype)
            kernels.pack(self._rows, self._memory.reshape(-1))
        segments, first, last = self._layout.cut(lo, hi)
        whole = last - first == len(self._memory)
        found = segments, self._memory if whole else self._memory[first:last]
        self._last = (lo, hi), found
        return found


class RowCache:
    """The rows of each bucket, made again only when a number has changed.

    Parameters
    ----------
    counts : UpdateCounts
    by_key : bool
        Whether every key has a row of its own.
    """

    def __init__(self, counts: UpdateCounts, *, by_key: bool = False) -> None:
        self._counts = counts
        self._by_key = by_key
        self._layouts: dict[int, tuple[object, object, int, RowLayout]] = {}
        self._rows: dict[int, tuple[Optimizer, int, RowLayout, ScalarRows]] = {}

    def rows(self, optimizer: Optimizer, bucket: Bucket) -> ScalarRows:
        """Return the rows of an update of `bucket`; `optimizer` is a snapshot."""
        layout = self.layout(optimizer, bucket)
        whole = self._counts.whole(bucket) if optimizer.counted else 0
        found = self._rows.get(bucket.index)
        if found is None or found[:3] != (optimizer, whole, layout):
            rows = ScalarRows(layout, layout.rows(optimizer, self._counts))
            found = self._rows[bucket.index] = optimizer, whole, layout, rows
        return found[3]

    def layout(self, optimizer: Optimizer, bucket: Bucket) -> RowLayout:
        """Return the bucket's segments under the factors, and the counts, as they are now."""
        version = self._counts.version if optimizer.counted else 0
        found = self._layouts.get(bucket.index)
        if (
            found is None
            or found[0] is not optimizer.lr_mult
            or found[1] is not optimizer.wd_mult
            or found[2] != version
        ):
            offsets = self._counts.offsets if optimizer.counted else {}
            layout = RowLayout(bucket, _marks(optimizer, bucket, offsets), by_key=self._by_key)
            found = optimizer.lr_mult, optimizer.wd_mult, version, layout
            self._layouts[bucket.index] = found
        return found[3]


def _marks(optimizer: Optimizer, bucket: Bucket, offsets: dict[Key, int]) -> list[Hashable]:
    """Return what tells rows of a bucket's keys apart: factors, and offsets of counts."""
    lr_mult, wd_mult = optimizer.lr_mult, optimizer.wd_mult
    if not (lr_mult or wd_mult or offsets):
        return [None] * len(bucket.entries)
    keys = [entry.key for entry in bucket.entries]
    return [(lr_mult.get(key, 1.0), wd_mult.get(key, 1.0), offsets.get(key, 0)) for key in keys]
