"""`ScalarRows`: the scalars of a bucket's update, a row for each run of keys with equal scalars.

An optimizer's scalars may depend on `UpdateCounts`.

The kernels read a step as rows of float64, one for each run of keys with equal factors.  Rows are
computed and copied again only after a hyperparameter or a count has changed.  Every rank counts
every update, also ranks that run none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.base import Array, Kernels, Segments
from ncclkv.optimizer.base import Optimizer
from ncclkv.table.bucket import Bucket
from ncclkv.typing import Key

_MAX_CUTS = 4096

Pushed = tuple[Bucket, AbstractSet[Key], AbstractSet[Key]]
"""A bucket, keys of it that are pushed, and those of them that wait for an earlier update."""

Cut = tuple[Segments, int, int]
"""Segments of a range of elements, and the first and the last of their rows, exclusive."""


class UpdateCounts:
    """The counts of updates by key.

    A key's count is its bucket's count plus the key's offset.  So the update of a whole bucket is
    counted in one addition.

    Attributes
    ----------
    whole : Counter of int
        Updates of whole buckets, by the bucket's index.
    offsets : dict of int
        Offsets by key; 0 for other keys.
    version : int
        A count that grows with each change of the offsets.
    """

    def __init__(self) -> None:
        self.offsets: dict[Key, int] = {}
        self.version = 0
        self.whole: Counter[int] = Counter()
        self._buckets: dict[int, Bucket] = {}

    def add(self, bucket: Bucket, keys: Collection[Key]) -> None:
        """Count one update of `keys`, which are keys of `bucket`."""
        self._buckets[bucket.index] = bucket
        if len(keys) == len(bucket.entries):
            self.whole[bucket.index] += 1
            return
        self.version += 1
        for key in keys:
            self.offsets[key] = self.offsets.get(key, 0) + 1

    def count(self, bucket: Bucket, key: Key) -> int:
        """Return the count of updates of a key of `bucket`."""
        return self.whole[bucket.index] + self.offsets.get(key, 0)

    def set(self, bucket: Bucket, key: Key, count: int) -> None:
        """Set the count of updates of a key of `bucket`."""
        self.version += 1
        self.offsets[key] = count - self.whole[bucket.index]
        self._buckets[bucket.index] = bucket

    def replace(self, old: Iterable[Bucket], new: Iterable[Bucket]) -> None:
        """Drop buckets, and give their keys the same counts in new buckets."""
        counts: dict[Key, int] = {}
        for bucket in old:
            for entry in bucket.entries:
                counts[entry.key] = self.count(bucket, entry.key)
                self.offsets.pop(entry.key, None)
            self.whole.pop(bucket.index, None)
            self._buckets.pop(bucket.index, None)
        for bucket in new:
            # Keys with the most frequent count have no offset: they share a row.
            common = Counter(counts[entry.key] for entry in bucket.entries).most_common(1)[0][0]
            self.whole[bucket.index] = common
            for entry in bucket.entries:
                if counts[entry.key] != common:
                    self.set(bucket, entry.key, counts[entry.key])
            self._buckets[bucket.index] = bucket
        self.version += 1

    def next(self, bucket: Bucket, keys: AbstractSet[Key], waiting: AbstractSet[Key]) -> int:
        """Return the largest count of the next updates of `keys`, which are keys of `bucket`.

        An update that waits to be launched is counted before the next update of its key.
        """
        if not waiting and self.offsets.keys().isdisjoint(keys):
            return self.whole[bucket.index] + 1
        return 1 + max(self.count(bucket, key) + (key in waiting) for key in keys)

    def largest(self) -> int:
        """Return the largest count of updates of a key."""
        return max(
            (
                self.count(bucket, entry.key)
                for bucket in self._buckets.values()
                for entry in bucket.entries
            ),
            default=0,
        )


class RowLayout:
    """Segments of a bucket, and the groups of segments that have equal rows.

    The padding after a key is updated with the key: zeros stay zeros.

    Parameters
    ----------
    bucket : Bucket
    optimizer : Optimizer
        Keys with equal factors, and equal offsets, have equal rows.
    offsets : mapping of key to int
        Offsets of the keys' counts.
    origin : int
        The element of the bucket from which segments count.
    by_key : bool
        Whether every key has its own segment; else neighbours with equal rows share a segment.
    """

    def __init__(
        self,
        bucket: Bucket,
        optimizer: Optimizer,
        offsets: Mapping[Key, int],
        origin: int,
        *,
        by_key: bool,
    ) -> None:
        groups: dict[tuple[float, ...], int] = {}
        self._keys: list[Key] = []
        starts: list[int] = []
        rows: list[int] = []
        for entry in bucket.entries:
            key = entry.key
            factors = *optimizer.factors_of(key), offsets.get(key, 0)
            if factors not in groups:
                groups[factors] = len(groups)
                self._keys.append(key)
            if by_key or not rows or rows[-1] != groups[factors]:
                starts.append(entry.lo)
                rows.append(groups[factors])
        self._bounds = [start - origin for start in (*starts, bucket.count)]
        # The kernels update a complex element as two reals.
        self._width = 2 if bucket.dtype.kind == "c" else 1
        self._rows = np.array(rows, np.intp)
        self._bucket = bucket
        self._cuts: dict[tuple[int, int], Cut] = {}

    def rows(self, optimizer: Optimizer, counts: UpdateCounts) -> NDArray[np.float64]:
        """Return the row of each segment, shape (segments, k), at the keys' counts."""
        # No update reads the row of a key that was never updated; an optimizer may divide by 0.
        begin, bucket = optimizer.begin_num_update, self._bucket
        of_groups = [
            optimizer.scalars(key, begin + max(1, counts.count(bucket, key))) for key in self._keys
        ]
        return np.array(of_groups, np.float64)[self._rows]

    def cut(self, lo: int, hi: int) -> Cut:
        """Return the segments of elements ``[lo, hi)`` from the origin; one object a range.

        Their bounds count reals: two for each complex element.
        """
        cached = self._cuts.get((lo, hi))
        if cached is None:
            if len(self._cuts) == _MAX_CUTS:
                self._cuts.clear()
            bounds = self._bounds
            first, last = bisect_right(bounds, lo) - 1, bisect_left(bounds, hi)
            inside = np.array([lo, *bounds[first + 1 : last], hi], np.int64) * self._width
            cached = self._cuts[lo, hi] = Segments(inside), first, last
        return cached


class ScalarRows:
    """The rows of one update, in the memory of the kernels that read them.

    Parameters
    ----------
    layout : RowLayout
    rows : ndarray of float64, shape (segments, k)
    copied : bool
        Whether `rows` is in the kernels' memory; else it is copied when the first range is updated.
    """

    def __init__(self, layout: RowLayout, rows: Array, *, copied: bool = False) -> None:
        self.layout = layout
        self._rows = rows
        self._memory = rows if copied else None
        self._last: tuple[tuple[int, int], tuple[Segments, Array]] | None = None

    def cut(self, kernels: Kernels, lo: int, hi: int) -> tuple[Segments, Array]:
        """Return the segments of elements ``[lo, hi)``, and their rows in the kernels' memory."""
        if self._last is not None and self._last[0] == (lo, hi):
            return self._last[1]
        if self._memory is None:
            # Allocated where the update runs: CuPy's pools reuse memory in the order of the stream.
            self._memory = kernels.empty(self._rows.shape, self._rows.dtype)
            kernels.pack(self._rows, self._memory.reshape(-1))
        segments, first, last = self.layout.cut(lo, hi)
        whole = last - first == len(self._memory)
        found = segments, self._memory if whole else self._memory[first:last]
        self._last = (lo, hi), found
        return found


class RowCache:
    """The rows of each bucket, computed again only after a hyperparameter or a count has changed.

    Parameters
    ----------
    counts : UpdateCounts
    by_key : bool
        Whether every key has its own row.
    """

    def __init__(self, counts: UpdateCounts, *, by_key: bool = False) -> None:
        self._counts = counts
        self._by_key = by_key
        self._layouts: dict[int, tuple[object, RowLayout]] = {}
        self._rows: dict[int, tuple[object, ScalarRows]] = {}

    def rows(self, optimizer: Optimizer, bucket: Bucket, origin: int) -> ScalarRows:
        """Return the rows of an update of `bucket`, whose segments count from `origin`.

        `optimizer` is a snapshot.
        """
        counts, index = self._counts, bucket.index
        version = (counts.whole[index], counts.version) if optimizer.counted else None
        wanted = optimizer, origin, version
        found = self._rows.get(index)
        if found is None or found[0] != wanted:
            layout = self.layout(optimizer, bucket, origin)
            rows = ScalarRows(layout, layout.rows(optimizer, counts))
            found = self._rows[index] = wanted, rows
        return found[1]

    def forget(self, bucket: Bucket) -> None:
        """Drop the rows of a bucket that is dropped."""
        self._rows.pop(bucket.index, None)
        self._layouts.pop(bucket.index, None)

    def layout(self, optimizer: Optimizer, bucket: Bucket, origin: int) -> RowLayout:
        """Return the bucket's segments from `origin`, for the present factors and counts."""
        version = self._counts.version if optimizer.counted else 0
        wanted = optimizer.lr_mult, optimizer.wd_mult, optimizer.idx2name, origin, version
        found = self._layouts.get(bucket.index)
        if found is None or found[0] != wanted:
            offsets = self._counts.offsets if optimizer.counted else {}
            layout = RowLayout(bucket, optimizer, offsets, origin, by_key=self._by_key)
            found = self._layouts[bucket.index] = wanted, layout
        return found[1]
