"""A bucket in memory, and what is under way in it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.memory import address, protected
from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer
from ncclkv.engine.in_flight import InFlight
from ncclkv.table import plan
from ncclkv.table.bucket import Bucket, Entry, Range
from ncclkv.table.registry import Key

Array = NDArray[Any]

_MAX_SPANS = 4096


class BucketState:
    """Gradients and weights of a bucket.

    Attributes
    ----------
    bucket : Bucket
    gradients, weights : ndarray, shape (bucket.count,)
    common : bool
        Whether the ranks of a node have the weights in common, and update them together.
    pushed : set of keys
        Pushed since the last launch: their gradients wait in the bucket.
    step : Any
        The update rule that was in force when they were pushed.
    in_flight : InFlight
        What is launched in it.
    launched : bool
        Whether it has been under the rule that is in force.
    stale : (int, int) or None
        Elements that the root has updated and other ranks have not been given.
    """

    def __init__(self, bucket: Bucket, comm: Communicator, *, common: bool = False) -> None:
        self.bucket = bucket
        self._comm = comm
        self.gradients: Buffer = comm.allocate(bucket.nbytes).view(bucket.dtype)
        weights = comm.node_shared(bucket.nbytes) if common else None
        self.common = weights is not None
        self.weights: Buffer = self._own() if weights is None else weights.view(bucket.dtype)
        self._states: dict[tuple[str, np.dtype[Any]], Buffer] = {}
        self._spans: dict[Range, Span] = {}
        self.pushed: set[Key] = set()
        self.step: Any = None
        self.in_flight = InFlight()
        self.launched = False
        self.stale: tuple[int, int] | None = None

    def _own(self) -> Buffer:
        """Memory of this rank's own for weights."""
        return self._comm.allocate(self.bucket.nbytes).view(self.bucket.dtype)

    def unshare_weights(self) -> None:
        """Give this rank weights of its own, as code of the user's needs that writes to them."""
        if self.common:
            own = self._own()
            own[...] = self.weights
            self.weights, self.common = own, False
            self._states.clear()
            self._spans.clear()

    def optimizer_state(self, name: str, dtype: np.dtype[Any]) -> Buffer:
        """Return an optimizer's state of that name: one number a weight, all zeros.

        Ranks that update together share one array, and call this together.
        """
        which = name, dtype
        shared = self._states.get(which)
        if shared is not None:
            shared[...] = 0
            return shared
        nbytes = self.bucket.count * dtype.itemsize
        memory = self._comm.node_shared(nbytes) if self.common else None
        if memory is None:
            return self._comm.kernels.zeros(self.bucket.count, dtype)
        self._states[which] = memory.view(dtype)
        return self._states[which]

    def span(self, span: Range) -> Span:
        """A range of elements; the same object again for the same range."""
        known = self._spans.get(span)
        if known is None:
            if len(self._spans) == _MAX_SPANS:
                self._spans.clear()
            lo, hi = span
            label = plan.label(self.bucket, span)
            known = Span(lo, hi, self.gradients[lo:hi], self.weights[lo:hi], label)
            self._spans[span] = known
        return known

    @property
    def full(self) -> bool:
        """Whether every key of the bucket has been pushed."""
        return len(self.pushed) == len(self.bucket.entries)

    def mark_stale(self, lo: int, hi: int) -> None:
        """Note that the root alone has elements ``[lo, hi)``."""
        if self.stale is not None:
            lo, hi = min(lo, self.stale[0]), max(hi, self.stale[1])
        self.stale = (lo, hi)


class Span(NamedTuple):
    """Elements ``[lo, hi)`` of a bucket, and what messages call them."""

    lo: int
    hi: int
    gradients: Buffer
    weights: Buffer
    label: str


class Slot:
    """A key's place in memory.

    Attributes
    ----------
    gradient, weight : ndarray, flat
    gradient_view, weight_view : ndarray of the key's shape
        The same memory; `weight_view` is read-only, where arrays can be.
    lent : bool
        Whether the user has been given a view of the gradient, and may be filling it.
    """

    def __init__(self, state: BucketState, entry: Entry) -> None:
        self.state = state
        self.entry = entry
        self.gradient = state.gradients[entry.lo : entry.hi]
        self.gradient_view = self.gradient.reshape(entry.spec.shape)
        self.lent = False
        self.find_weight()

    def find_weight(self) -> None:
        """Look where the bucket's weights are, now."""
        self.weight = self.state.weights[self.entry.lo : self.entry.hi]
        self.weight_view: Array = protected(self.weight).reshape(self.entry.spec.shape)

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
