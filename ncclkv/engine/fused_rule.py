"""`FusedRule`: the update rule of a built-in optimizer, for whole ranges of buckets.

Under ``multi_precision=True`` a 16-bit weight has a float32 state ``master``
(`Optimizer.states_for`).  The kernels update the master by the program's arithmetic, and round it
to the weight.  A new value of a key, and a checkpoint without masters, set the master from the
weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, cast

from ncclkv.arrays.dtypes import real_numbers
from ncclkv.comm.destinations import To
from ncclkv.comm.types import Apply
from ncclkv.engine.bucket_state import BucketState
from ncclkv.engine.norms import NormLaunch, norm_updates
from ncclkv.engine.reduction import Span
from ncclkv.engine.storage import Array, StoredBucket, StoredKey
from ncclkv.engine.update_rule import Rule
from ncclkv.kernels.base import Kernels
from ncclkv.optimizer.base import MASTER, Optimizer
from ncclkv.optimizer.captured import CapturedUpdates
from ncclkv.optimizer.restore import copied, set_config
from ncclkv.optimizer.scalar_rows import Pushed, RowCache, UpdateCounts
from ncclkv.optimizer.steps import Steps
from ncclkv.table.bucket import Bucket, Entry, Range
from ncclkv.table.registry import Key, KeySpec


class _Part(NamedTuple):
    """Elements ``[lo, hi)`` of a bucket, which this rank updates.

    Attributes
    ----------
    lo, hi : int
    states : dict of ndarray
        The states by name.
    updated : tuple of ndarray
        Weights, gradients and the program's states as real numbers, as `Kernels.update` takes them.
    master : ndarray or None
    """

    lo: int
    hi: int
    states: dict[str, Array]
    updated: tuple[Array, Array, Sequence[Array]]
    master: Array | None

    def of(self, entry: Entry) -> Range:
        """Return the elements of a key that lie in this part."""
        size = entry.spec.size
        return min(max(self.lo - entry.lo, 0), size), min(max(self.hi - entry.lo, 0), size)


class FusedRule(Rule):
    """Updates ranges of buckets with one kernel call each; a range may hold several keys.

    Parameters
    ----------
    optimizer : Optimizer
        Each push reads its hyperparameters, so a changed attribute takes effect at the next push.
    kernels : Kernels
        The kernels of the device that holds the buckets.

    Attributes
    ----------
    source : Optimizer
        The optimizer as given.
    counts : UpdateCounts
        Updates of each key: one for each launch that has the key.
    """

    source: Optimizer
    steps: Steps

    def __init__(self, optimizer: Optimizer, kernels: Kernels) -> None:
        self.name = type(optimizer).__name__
        self.norms = norm_updates(optimizer, kernels)
        self.source = optimizer
        self.counts = UpdateCounts()
        self._kernels = kernels
        self._parts: dict[int, _Part] = {}
        # Indices of the buckets whose states are those of the rule that this rule continues.
        self._inherited: frozenset[int] = frozenset()
        self._rows = self._new_rows()
        # The largest count of updates of a key; None if there was no schedule to count for.
        self._num_update: int | None = None
        self.steps = Steps(optimizer)
        self._other: Steps | None = None

    def check(self, spec: KeySpec) -> None:
        """Refuse a key that the optimizer cannot update.

        Raises
        ------
        DTypeMismatch
            When the optimizer cannot update the key's dtype, such as an integer.
        """
        self.source.check_weights(spec.key, spec.dtype)

    def continued_by(
        self, optimizer: Optimizer, buckets: Sequence[StoredBucket]
    ) -> FusedRule | None:
        """Return a rule of another optimizer with these states and counts.

        Parameters
        ----------
        optimizer : Optimizer
        buckets : sequence of StoredBucket
            All buckets of the store.

        Returns
        -------
        FusedRule or None
            None if the optimizer is of another class, or keeps other states.
        """
        mine = self.source
        if type(optimizer) is not type(mine) or optimizer.states != mine.states:
            return None
        if optimizer.multi_precision != mine.multi_precision:
            return None
        rule = FusedRule(optimizer, self._kernels)
        rule.counts, rule._parts = self.counts, self._parts
        rule._rows = rule._new_rows()
        # Not all of `_parts`: memory may have run out while a later bucket was made.
        rule._inherited = frozenset(state.bucket.index for state in buckets)
        return rule

    def _new_rows(self) -> RowCache:
        """Return rows of scalars, for each key if each has norms of its own."""
        return RowCache(self.counts, by_key=self.norms is not None)

    # Hyperparameters

    def step(self, pushes: Iterable[Pushed] = ()) -> Optimizer:
        """Return the step of a push: a snapshot of the optimizer's hyperparameters.

        A schedule's learning rate is that of the largest count of updates of a key, these
        included.  All keys of a push have one rate.

        Raises
        ------
        UsageError
            When a factor, or the learning rate of the schedule, is not finite.
        """
        if self.source.lr_scheduler is None:
            # Apart from `_largest_count`: every push takes this step, and each call costs it time.
            self._num_update = None
            return self.steps.at(0)
        count = self._largest_count(pushes)
        step = self.steps.at(self._scheduled(count))
        self._record(count)
        return step

    def _largest_count(self, pushes: Iterable[Pushed]) -> int:
        """Return the largest count of updates of a key after these; 0 without a schedule."""
        if self.source.lr_scheduler is None:
            self._num_update = None
            return 0
        before = self.counts.largest() if self._num_update is None else self._num_update
        if self.recording is not None:
            return before
        return max(before, *(self.counts.next(*pushed) for pushed in pushes), 0)

    def _scheduled(self, count: int) -> int:
        """Return the argument of the schedule, which counts from 1."""
        return self.source.begin_num_update + max(1, count)

    def _record(self, count: int) -> None:
        """Record the largest count of updates of a key, if there is a schedule."""
        if self.source.lr_scheduler is not None:
            self._num_update = count
            self.source.count_updates(self.source.begin_num_update + count)

    def hyperparameters(self) -> dict[str, Any]:
        self.step()
        return self.steps.config

    def step_from(self, hyperparameters: Mapping[str, Any], pushes: Iterable[Pushed]) -> Optimizer:
        count = self._largest_count(pushes)
        step = self.steps.at(self._scheduled(count))
        if hyperparameters != self.steps.config:
            if self._other is None or self._other.config != hyperparameters:
                other = copied(self.source)
                set_config(other, hyperparameters)
                self._other = Steps(other)
            step = self._other.at(self._scheduled(count))
        self._record(count)
        return step

    def adopt(self, hyperparameters: Mapping[str, Any]) -> None:
        set_config(self.source, hyperparameters)

    # States

    def allocate(self, state: StoredBucket, to: To) -> None:
        if state.bucket.index in self._inherited:
            return
        dtype = state.bucket.dtype
        declared = self.source.states_for(dtype)
        states = {
            each.name: state.optimizer_state(each.name, each.dtype_for(dtype), to)
            for each in declared
        }
        lo, hi = state.part(to)
        gradients = cast(BucketState, state).gradients  # another storage has a rule of its own
        kept = dict(states)
        master = kept.pop(MASTER.name, None) if self.source.multi_precision else None
        weights, gradients = map(real_numbers, (state.weights[lo:hi], gradients[lo:hi]))
        updated = weights, gradients, tuple(map(real_numbers, kept.values()))
        self._parts[state.bucket.index] = _Part(lo, hi, states, updated, master)
        for each in declared:
            if each.init == "weights":
                self._kernels.unpack(state.weights[lo:hi], states[each.name])

    def reset(self, slot: StoredKey) -> None:
        states = self.states(slot)
        lo, hi = self.part(slot)
        for each in self.source.states_for(slot.entry.spec.dtype) if states else ():
            if each.init == "weights":
                self._kernels.unpack(slot.weight[lo:hi], states[each.name])
            else:
                states[each.name][...] = 0
        self.set_count(slot, 0)

    def follow(self, slot: StoredKey) -> None:
        lo, hi = self.part(slot)
        master = self.states(slot).get(MASTER.name)
        if master is not None:
            self._kernels.unpack(slot.weight[lo:hi], master)

    def states(self, slot: StoredKey) -> dict[str, Array]:
        part = self._parts.get(slot.state.bucket.index)
        if part is None:
            return {}
        lo, hi = part.of(slot.entry)
        if lo == hi:
            return {name: state[:0] for name, state in part.states.items()}
        first = slot.entry.lo - part.lo
        return {name: state[first + lo : first + hi] for name, state in part.states.items()}

    def part(self, slot: StoredKey) -> Range:
        part = self._parts.get(slot.state.bucket.index)
        return super().part(slot) if part is None else part.of(slot.entry)

    def state_bytes(self, state: StoredBucket) -> int:
        part = self._parts.get(state.bucket.index)
        return 0 if part is None else sum(each.nbytes for each in part.states.values())

    def count(self, slot: StoredKey) -> int:
        return self.counts.count(slot.state.bucket, slot.entry.key)

    def set_count(self, slot: StoredKey, count: int) -> None:
        self.counts.set(slot.state.bucket, slot.entry.key, count)

    def replace_buckets(self, old: Sequence[Bucket], new: Sequence[Bucket]) -> None:
        self.counts.replace(old, new)
        for bucket in old:
            self._parts.pop(bucket.index, None)
            self._rows.forget(bucket)

    def counts_set(self) -> None:
        self._record(self.counts.largest())

    # Updates

    def count_update(self, bucket: Bucket, keys: Set[Key]) -> None:
        if self.recording is None:
            self.counts.add(bucket, keys)
        else:
            self.recording.add(bucket, keys)

    def target(
        self, state: StoredBucket, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        bucket, kernels = state.bucket, self._kernels
        part = self._parts[bucket.index]
        first = part.lo
        if self.recording is None:
            rows = self._rows.rows(state.step, bucket, first)
        else:
            kernels = self.recording.kernels
            rows = self.recording.rows(bucket)
        if self.norms is not None:
            arrays = part.updated, rows, kernels, skip_flag, part.master
            return self.norms.target(NormLaunch(state, spans, first, *arrays))

        def update(start: int) -> Apply:
            """Return the update of a span that begins at element `start` of this rank's part."""

            def apply(lo: int, hi: int) -> None:
                segments, scalars = rows.cut(kernels, start + lo, start + hi)
                arrays = *part.updated, scalars, segments
                kernels.update(self.source.program, *arrays, skip_flag, part.master)

            return apply

        targets: list[tuple[Array, Apply | None]] = []
        for span in spans:  # a comprehension is a call more, in each push
            targets.append((span.gradients, update(span.lo - first)))
        return targets

    # Captures

    def captured(self, states: Sequence[StoredBucket], kernels: Kernels) -> CapturedUpdates:
        origins = {index: part.lo for index, part in self._parts.items()}
        parts = [(state.bucket, origins.get(state.bucket.index, 0)) for state in states]
        counted = self.source.counted or self.source.lr_scheduler is not None
        write = None if self.norms is None else self.norms.write
        arguments = self.step, counted, self.counts, parts, self._kernels, kernels
        return CapturedUpdates(*arguments, write)
