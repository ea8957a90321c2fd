"""`BucketMemory`: finds the bucket in whose memory an array lies."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.memory import FEW, address, addresses
from ncclkv.engine.storage import Array, StoredBucket

_FEW = 64
"""Count of ranges up to which insertion into a sorted list is faster than sorting it."""


class BucketMemory:
    """Index of the buckets' memory by address."""

    def __init__(self, states: Iterable[StoredBucket]) -> None:
        self._starts: list[int] = []
        self._bounds: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
        self._ranges: dict[int, tuple[int, StoredBucket, bool]] = {}
        self.add(states)

    def add(self, states: Iterable[StoredBucket]) -> None:
        """Add buckets; a few are inserted without a look at the others."""
        new = {
            address(memory): (address(memory) + memory.nbytes, state, memory is state.weights)
            for state in states
            for memory in (*state.lent_memory, state.weights)
            if memory.nbytes  # the address of an empty array may be another array's
        }
        if len(new) <= _FEW:
            for start in new:
                bisect.insort(self._starts, start)
        else:
            self._starts = sorted([*self._starts, *new])
        self._ranges.update(new)
        self._bounds = None

    def find(self, array: Array) -> tuple[StoredBucket, bool] | None:
        """Return the bucket that the array lies in, and whether in its weights; else None."""
        start = address(array)
        nearest = bisect.bisect_right(self._starts, start) - 1
        if nearest < 0:
            return None
        end, state, in_weights = self._ranges[self._starts[nearest]]
        return (state, in_weights) if start < end else None

    def find_all(self, arrays: Sequence[Array]) -> list[tuple[StoredBucket, bool] | None]:
        """Return the result of `find` for each array."""
        # For a few arrays the calls of NumPy take longer.
        begins = addresses(arrays) if len(arrays) > FEW else None
        if begins is None or self.holds_any(begins):
            return [self.find(array) for array in arrays]
        return [None] * len(arrays)

    def holds_any(self, begins: NDArray[np.intp]) -> bool:
        """Return whether an address lies in a bucket."""
        if self._bounds is None:
            ends = [self._ranges[start][0] for start in self._starts]
            # The first end is below every address.
            self._bounds = np.array(self._starts, np.intp), np.array([0, *ends], np.intp)
        starts, ends_before = self._bounds
        return bool((begins < ends_before[np.searchsorted(starts, begins, "right")]).any())
