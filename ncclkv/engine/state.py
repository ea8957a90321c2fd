"""A bucket in memory, and what is under way in it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from ncclkv.arrays.memory import address, protected
from ncclkv.comm.base import Buffer, Communicator, Work
from ncclkv.table.bucket import Bucket, Entry
from ncclkv.table.registry import Key

Array = NDArray[Any]


class BucketState:
    """Gradients and weights of a bucket.

    Attributes
    ----------
    layout : Bucket
    gradients, weights : ndarray, shape (layout.count,)
    pushed : set of keys
        Pushed since the last launch: their gradients wait in the bucket.
    step : Any
        The update rule that was in force when they were pushed.
    flying : list of Work
        Launched, and not known to be complete.
    launched : bool
        Whether it has been under the rule that is in force.
    behind : (int, int) or None
        Elements that the root has updated and other ranks have not been given.
    """

    def __init__(self, layout: Bucket, comm: Communicator) -> None:
        self.layout = layout
        self.gradients: Buffer = comm.allocate(layout.nbytes).view(layout.dtype)
        self.weights: Buffer = comm.allocate(layout.nbytes).view(layout.dtype)
        self.pushed: set[Key] = set()
        self.step: Any = None
        self.flying: list[Work] = []
        self.launched = False
        self.behind: tuple[int, int] | None = None

    @property
    def full(self) -> bool:
        """Whether every key of the bucket has been pushed."""
        return len(self.pushed) == len(self.layout.entries)

    def fall_behind(self, lo: int, hi: int) -> None:
        """Note that the root alone has elements ``[lo, hi)``."""
        if self.behind is not None:
            lo, hi = min(lo, self.behind[0]), max(hi, self.behind[1])
        self.behind = (lo, hi)


class Slot:
    """A key's place in memory.

    Attributes
    ----------
    gradient, weight : ndarray, flat
    gradient_view, weight_view : ndarray of the key's shape
        The same memory; `weight_view` is read-only, where arrays can be.
    """

    def __init__(self, state: BucketState, entry: Entry) -> None:
        shape = entry.spec.shape
        self.state = state
        self.entry = entry
        self.gradient = state.gradients[entry.lo : entry.hi]
        self.weight = state.weights[entry.lo : entry.hi]
        self.gradient_view = self.gradient.reshape(shape)
        self.weight_view: Array = protected(self.weight).reshape(shape)

    def holds(self, value: Array) -> bool:
        """Whether `value` is this key's own gradient, whole."""
        return (
            value.flags.c_contiguous
            and value.shape == self.gradient_view.shape
            and address(value) == address(self.gradient)
        )


class BucketMemory:
    """Finds the bucket that an array lies in, if it lies in one."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, BucketState, bool]] = []

    def add(self, states: Iterable[BucketState]) -> None:
        """Include more buckets."""
        for state in states:
            for memory in (state.gradients, state.weights):
                start = address(memory)
                weights = memory is state.weights
                self._spans.append((start, start + memory.nbytes, state, weights))
        self._spans.sort(key=lambda span: span[0])

    def around(self, array: Array) -> tuple[BucketState, bool] | None:
        """The bucket whose memory holds the array, and whether its weights do."""
        where = address(array)
        nearest = bisect.bisect_right(self._spans, where, key=lambda span: span[0]) - 1
        if nearest < 0 or where >= self._spans[nearest][1]:
            return None
        return self._spans[nearest][2:]
