"""A storage of keys for tests: a bucket keeps the arrays of its pushes in a list until the launch.

Its rule adds the sum to the value, whatever updater the program has set for dense keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np

from ncclkv.comm.base import Collective, Communicator
from ncclkv.comm.destinations import EVERYONE, To
from ncclkv.comm.types import Apply, Buffer
from ncclkv.engine.bucket_push import Indices
from ncclkv.engine.events import Events
from ncclkv.engine.reduction import Senders, Span
from ncclkv.engine.reductions import Reductions
from ncclkv.engine.storage import Array, StoredBucket, StoredKey, StoredPush
from ncclkv.engine.storage_table import Storage
from ncclkv.engine.update_rule import Rule
from ncclkv.kernels.base import Kernels
from ncclkv.table.bucket import Bucket, Range
from ncclkv.table.registry import Key

NAME = "listed"


class ListedBucket(StoredBucket):
    """A bucket of one key, whose op is sum or avg."""

    def __init__(
        self,
        bucket: Bucket,
        comm: Communicator,
        reductions: Reductions,
        *,
        to: To = EVERYONE,
        share_weights: bool = False,
        has_values: bool = True,
    ) -> None:
        super().__init__(bucket, comm, reductions, to=to)
        (self.entry,) = bucket.entries
        self.weights = comm.allocate(bucket.nbytes).view(bucket.dtype)
        self.total: Buffer = comm.allocate(bucket.nbytes).view(bucket.dtype)
        self.listed: list[Array] = []

    def select(self, keys: Set[Key] | None = None) -> tuple[Set[Key], Sequence[Span]]:
        self.launched = True
        selected = self.waiting if keys is None else self.waiting & keys
        return selected, [self.span((0, self.bucket.count))]

    def span(self, bounds: Range) -> Span:
        part = slice(*bounds)
        span = Span(*bounds, self.total[part], self.weights[part], f"key {self.entry.key!r}")
        span.to, span.bucket = self.to.within(*bounds), self.bucket
        span.reduction = ListedReduction(self._comm, self)
        return span

    def own_arrays(self) -> Sequence[Array]:
        return self.listed

    def drop(self, keys: Collection[Key] | None = None) -> None:
        super().drop(keys)
        if not self.waiting:
            self.listed.clear()

    def end_launch(self, keys: Set[Key]) -> None:
        super().end_launch(keys)
        self.listed.clear()


class ListedReduction:
    """Adds the arrays of a list one by one, and then the ranks' totals."""

    def __init__(self, comm: Communicator, state: ListedBucket) -> None:
        self._comm = comm
        self._state = state

    def prepare(
        self, span: Span, receive: Buffer, op: str, senders: Senders | None = None
    ) -> Collective:
        total, entry = span.gradients, self._state.entry
        total[...] = 0
        for array in self._state.listed:
            total[entry.lo : entry.hi] += array
        if op == "avg" and senders is not None:
            total *= self._comm.size / len(senders)
        return self._comm.reduction(total, receive, op, to=span.to)


class ListedKey(StoredKey):
    """The key of such a bucket."""

    state: ListedBucket

    def pushed_arrays(self) -> Sequence[Array]:
        return self.state.listed

    def push_neutral(self, kernels: Kernels) -> None:
        self.state.complete()
        self.state.listed.clear()
        self.state.push_filled(self.entry.key)


class ListedPush(StoredPush):
    """The arrays of a push of that key."""

    __slots__ = ("_indices",)

    state: ListedBucket

    def __init__(
        self,
        slots: Sequence[ListedKey],
        indices: Mapping[Key, Indices],
        in_place: Set[Key],
        count: int,
    ) -> None:
        (slot,) = slots
        self.state, self.keys = slot.state, {slot.entry.key}
        self.in_place: list[StoredKey] = []
        self._indices = indices[slot.entry.key]
        self.several = [self._indices] if len(self._indices) > 1 else []

    def copy_in(
        self,
        arrays: Sequence[Array],
        kernels: Kernels,
        events: Events,
        *,
        to_weights: bool = False,
    ) -> None:
        self.state.listed[:] = [np.array(arrays[index]).reshape(-1) for index in self._indices]


class AddSums(Rule):
    """Adds sums to values, and counts its updates."""

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}

    def target(
        self, state: StoredBucket, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        return [(span.gradients, partial(self._add, span)) for span in spans]

    @staticmethod
    def _add(span: Span, lo: int, hi: int) -> None:
        span.weights[lo:hi] += span.gradients[lo:hi]

    def count_update(self, bucket: Bucket, keys: Set[Key]) -> None:
        for key in keys:
            self.counts[key] = self.counts.get(key, 0) + 1

    def count(self, slot: StoredKey) -> int:
        return self.counts.get(slot.entry.key, 0)

    def set_count(self, slot: StoredKey, count: int) -> None:
        self.counts[slot.entry.key] = count


def add_sums(rule: Any) -> AddSums:
    """Return the rule of listed keys, which does not depend on the rule of dense keys."""
    return AddSums()


ROW = Storage(ListedBucket, ListedKey, ListedPush, add_sums)
