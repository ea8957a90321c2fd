"""Update counts by key."""

from __future__ import annotations

from collections.abc import Collection

from ncclkv.table.bucket import Bucket
from ncclkv.typing import Key


class UpdateCounts:
    """The number of updates of each key, whose cost does not grow with the keys of a whole bucket.

    A key's count is that of its bucket plus an offset of the key's own.

    Attributes
    ----------
    offsets : dict of int
        By key; 0 for keys not named.
    version : int
        Another one after each change of the offsets.
    """

    def __init__(self) -> None:
        self.offsets: dict[Key, int] = {}
        self.version = 0
        self._whole: dict[int, int] = {}

    def add(self, bucket: Bucket, keys: Collection[Key]) -> None:
        """Count one update of `keys`, which are keys of `bucket`."""
        if len(keys) == len(bucket.entries):
            self._whole[bucket.index] = self._whole.get(bucket.index, 0) + 1
            return
        self.version += 1
        for key in keys:
            self.offsets[key] = self.offsets.get(key, 0) + 1

    def count(self, bucket: Bucket, key: Key) -> int:
        """Return the number of updates of a key of `bucket`."""
        return self._whole.get(bucket.index, 0) + self.offsets.get(key, 0)

    def set(self, bucket: Bucket, key: Key, count: int) -> None:
        """Make `count` the number of updates of a key of `bucket`."""
        self.version += 1
        self.offsets[key] = count - self._whole.get(bucket.index, 0)

    def whole(self, bucket: Bucket) -> int:
        """Return the number of updates of the whole bucket."""
        return self._whole.get(bucket.index, 0)
