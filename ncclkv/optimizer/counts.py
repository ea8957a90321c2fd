"""`UpdateCounts`: the number of updates of each key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ncclkv.table.bucket import Bucket
from ncclkv.typing import Key


class UpdateCounts:
    """The number of updates of each key.

    A key's count is its bucket's count plus the key's offset.  So the update of a whole bucket is
    counted in one addition.

    Attributes
    ----------
    whole : Counter of int
        Updates of whole buckets, by the bucket's number.
    offsets : dict of int
        Offsets by key; 0 for other keys.
    version : int
        A number that changes with each change of the offsets.
    """

    def __init__(self) -> None:
        self.offsets: dict[Key, int] = {}
        self.version = 0
        self.whole: Counter[int] = Counter()

    def add(self, bucket: Bucket, keys: Collection[Key]) -> None:
        """Count one update of `keys`, which are keys of `bucket`."""
        if len(keys) == len(bucket.entries):
            self.whole[bucket.index] += 1
            return
        self.version += 1
        for key in keys:
            self.offsets[key] = self.offsets.get(key, 0) + 1

    def count(self, bucket: Bucket, key: Key) -> int:
        """Return the number of updates of a key of `bucket`."""
        return self.whole[bucket.index] + self.offsets.get(key, 0)

    def set(self, bucket: Bucket, key: Key, count: int) -> None:
        """Make `count` the number of updates of a key of `bucket`."""
        self.version += 1
        self.offsets[key] = count - self.whole[bucket.index]
