"""`FusedRule`: the update rule of a built-in optimizer, for whole ranges of buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ncclkv.arrays.dtypes import dtype_name, is_low_precision
from ncclkv.comm.types import Apply, To
from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.engine.reduction import Span
from ncclkv.engine.update_rule import Rule
from ncclkv.errors import DTypeMismatch, NotSupported
from ncclkv.kernels.base import Kernels
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.captured import CapturedUpdates
from ncclkv.optimizer.restore import set_config
from ncclkv.optimizer.scalar_rows import RowCache, UpdateCounts
from ncclkv.table.bucket import Entry, Range
from ncclkv.table.registry import KeySpec


class _Part(NamedTuple):
    """Elements ``[lo, hi)`` of a bucket, which this rank updates, with their states by name."""

    lo: int
    hi: int
    states: dict[str, Array]

    def of(self, entry: Entry) -> Range:
        """Return the elements of a key that lie in this part."""
        size = entry.spec.size
        return min(max(self.lo - entry.lo, 0), size), min(max(self.hi - entry.lo, 0), size)


class FusedRule(Rule):
    """Updates ranges of buckets with one kernel call each; a range may hold several keys.

    Parameters
    ----------
    optimizer : Optimizer
        Each push reads its numbers, so a changed attribute takes effect at the next push.
    kernels : Kernels
        The kernels of the device that holds the buckets.

    Attributes
    ----------
    source : Optimizer
        The optimizer as given.
    counts : UpdateCounts
        Updates of each key: one for each launch that has the key.

    Raises
    ------
    NotSupported
        When the optimizer needs norms.
    """

    source: Optimizer

    def __init__(self, optimizer: Optimizer, kernels: Kernels) -> None:
        self.name = type(optimizer).__name__
        if optimizer.norms:
            raise NotSupported(
                f"{self.name} needs the norms of weights and gradients, which no store computes "
                f"in this version; set an optimizer without them"
            )
        self.source = optimizer
        self.counts = UpdateCounts()
        self._kernels = kernels
        self._declared = optimizer.states
        self._parts: dict[int, _Part] = {}
        self._rows = RowCache(self.counts)
        self._version: object = None
        self._config: dict[str, Any] = {}
        self._step = optimizer
        self._other: tuple[Mapping[str, Any], Optimizer] | None = None

    def check(self, spec: KeySpec) -> None:
        """Refuse a key that the optimizer cannot update.

        Raises
        ------
        DTypeMismatch
            When the key's dtype is not a real floating dtype.
        """
        dtype = spec.dtype
        if dtype.kind != "f" and not is_low_precision(dtype):
            raise DTypeMismatch(
                f"key {spec.key!r} is {dtype_name(dtype)}, and {self.name} updates float16, "
                "bfloat16, float32 and float64; keep such a key in a store without an optimizer, "
                "or give set_updater a function"
            )

    # Hyperparameters

    def step(self) -> Optimizer:
        """Return the step of the next push: a snapshot of the optimizer's numbers.

        Each push keeps its step, because its update may run after a later change of a number.  The
        snapshot is the same object until a number changes.

        Raises
        ------
        UsageError
            When a factor of the optimizer is not a finite number.
        """
        version = self.source.version
        if version != self._version:
            # Compared by value: a rank that assigns an equal number must launch like the others.
            config = self.source.config()
            if config != self._config:
                self._config, self._step = config, self.source.snapshot()
            self._version = version
        return self._step

    def hyperparameters(self) -> dict[str, Any]:
        self.step()
        return self._config

    def step_from(self, numbers: Mapping[str, Any]) -> Optimizer:
        step = self.step()
        if numbers == self._config:
            return step
        if self._other is None or self._other[0] != numbers:
            other = self.source.snapshot()
            set_config(other, numbers)
            self._other = numbers, other.snapshot()
        return self._other[1]

    def adopt(self, numbers: Mapping[str, Any]) -> None:
        set_config(self.source, numbers)

    # States

    def allocate(self, state: BucketState, to: To) -> None:
        dtype = state.bucket.dtype
        states = {
            each.name: state.optimizer_state(each.name, each.dtype_for(dtype), to)
            for each in self._declared
        }
        lo, hi = state.part(to)
        self._parts[state.bucket.index] = _Part(lo, hi, states)
        for each in self._declared:
            if each.init == "weights":
                self._kernels.unpack(state.weights[lo:hi], states[each.name])

    def reset(self, slot: Slot) -> None:
        states = self.states(slot)
        lo, hi = self.part(slot)
        for each in self._declared if states else ():
            if each.init == "weights":
                self._kernels.unpack(slot.weight[lo:hi], states[each.name])
            else:
                states[each.name][...] = 0
        self.set_count(slot, 0)

    def states(self, slot: Slot) -> dict[str, Array]:
        part = self._parts.get(slot.state.bucket.index)
        if part is None:
            return {}
        lo, hi = part.of(slot.entry)
        if lo == hi:
            return {name: state[:0] for name, state in part.states.items()}
        first = slot.entry.lo - part.lo
        return {name: state[first + lo : first + hi] for name, state in part.states.items()}

    def part(self, slot: Slot) -> Range:
        part = self._parts.get(slot.state.bucket.index)
        return super().part(slot) if part is None else part.of(slot.entry)

    def state_bytes(self, state: BucketState) -> int:
        part = self._parts.get(state.bucket.index)
        return 0 if part is None else sum(each.nbytes for each in part.states.values())

    def count(self, slot: Slot) -> int:
        return self.counts.count(slot.state.bucket, slot.entry.key)

    def set_count(self, slot: Slot, count: int) -> None:
        self.counts.set(slot.state.bucket, slot.entry.key, count)

    # Updates

    def target(
        self, state: BucketState, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        bucket, kernels = state.bucket, self._kernels
        first, last, states = self._parts[bucket.index]
        # Counted here, once for all spans: `apply` runs for each block of a span.
        if self.recording is None:
            self.counts.add(bucket, state.pushed)
            rows = self._rows.rows(state.step, bucket, first)
        else:
            kernels = self.recording.kernels
            rows = self.recording.rows(bucket, state.pushed)
        arrays = state.weights[first:last], state.gradients[first:last], tuple(states.values())

        def update(start: int) -> Apply:
            """Return the update of a span that begins at element `start` of this rank's part."""

            def apply(lo: int, hi: int) -> None:
                segments, scalars = rows.cut(kernels, start + lo, start + hi)
                kernels.update(self.source.program, *arrays, scalars, segments, skip_flag)

            return apply

        return [(span.gradients, update(span.lo - first)) for span in spans]

    # Captures

    def captured(self, states: Sequence[BucketState], kernels: Kernels) -> CapturedUpdates:
        origins = {index: part.lo for index, part in self._parts.items()}
        parts = [(state.bucket, origins.get(state.bucket.index, 0)) for state in states]
        return CapturedUpdates(self.step, self.counts, parts, self._kernels, kernels)
