"""An optimizer at work on whole buckets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ncclkv.arrays.dtypes import dtype_name, is_low_precision
from ncclkv.errors import DTypeMismatch, NotSupported
from ncclkv.kernels.base import Array, Kernels, Segments
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.captured import CapturedUpdates
from ncclkv.optimizer.counts import UpdateCounts
from ncclkv.optimizer.restore import set_config
from ncclkv.optimizer.scalar_rows import RowCache

if TYPE_CHECKING:
    from ncclkv.table.bucket import Bucket
    from ncclkv.table.registry import Key, KeySpec

MakeState = Callable[[str, np.dtype[Any]], Array]
"""``make(name, dtype)`` is an array of zeros, as long as the bucket."""


class Rows(Protocol):
    """The scalars of an update."""

    def cut(self, kernels: Kernels, lo: int, hi: int) -> tuple[Segments, Array]:
        """Return the segments of elements ``[lo, hi)``, and their rows in the kernels' memory."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update of a bucket, whose ranges are updated as their sums arrive."""

    kernels: Kernels
    program: str
    weights: Array
    gradients: Array
    states: Sequence[Array]
    rows: Rows
    skip: Array | None

    def __call__(self, lo: int, hi: int) -> None:
        """Update elements ``[lo, hi)`` of the bucket."""
        segments, scalars = self.rows.cut(self.kernels, lo, hi)
        arrays = self.weights, self.gradients, self.states
        self.kernels.update(self.program, *arrays, scalars, segments, self.skip)


class FusedUpdater:
    """Update ranges of buckets with one kernel call each, whatever keys lie in them.

    Parameters
    ----------
    optimizer : Optimizer
        Its numbers are looked at in each push, so changes of its attributes take effect.
    kernels : Kernels
        Those of the device that holds the buckets.

    Attributes
    ----------
    optimizer : Optimizer
        As given.
    program : str
        The optimizer's.
    counts : UpdateCounts
        Updates of each key, counted once a launch.

    Raises
    ------
    NotSupported
        When the optimizer needs norms.
    """

    def __init__(self, optimizer: Optimizer, kernels: Kernels) -> None:
        if optimizer.norms:
            raise NotSupported(
                f"{type(optimizer).__name__} needs the norms of weights and gradients, which no "
                f"store computes in this version; set an optimizer without them"
            )
        self.optimizer = optimizer
        self.program = optimizer.program
        self.counts = UpdateCounts()
        self._kernels = kernels
        self._declared = optimizer.states
        self._states: dict[int, dict[str, Array]] = {}
        self._rows = RowCache(self.counts)
        self._captured: CapturedUpdates | None = None
        self._version: object = None
        self._config: dict[str, Any] = {}
        self._step = optimizer
        self._other: tuple[Mapping[str, Any], Optimizer] | None = None

    def check(self, spec: KeySpec) -> None:
        """Refuse a key that the optimizer cannot update.

        Raises
        ------
        DTypeMismatch
            When the key's dtype is not a real floating one.
        """
        dtype = spec.dtype
        if dtype.kind != "f" and not is_low_precision(dtype):
            raise DTypeMismatch(
                f"key {spec.key!r} is {dtype_name(dtype)}, and {type(self.optimizer).__name__} "
                "updates float16, bfloat16, float32 and float64; keep such a key in a store "
                "without an optimizer, or give set_updater a function"
            )

    # Numbers

    def step(self) -> Optimizer:
        """Return a snapshot of the optimizer; the same object until one of its numbers changes.

        A push may be applied after the user has changed the learning rate for the next one.

        Raises
        ------
        UsageError
            When a factor of the optimizer is not a finite number.
        """
        version = self.optimizer.version
        if version != self._version:
            # Compared by value: ranks launch alike, also when one of them assigns an equal number.
            config = self.optimizer.config()
            if config != self._config:
                self._config, self._step = config, self.optimizer.snapshot()
            self._version = version
        return self._step

    def hyperparameters(self) -> dict[str, Any]:
        """Return the optimizer's numbers as they are now, for other ranks."""
        self.step()
        return self._config

    def step_from(self, numbers: Mapping[str, Any]) -> Optimizer:
        """Return a snapshot with the `numbers` of a rank, which may differ from this rank's."""
        step = self.step()
        if numbers == self._config:
            return step
        if self._other is None or self._other[0] != numbers:
            other = self.optimizer.snapshot()
            set_config(other, numbers)
            self._other = numbers, other.snapshot()
        return self._other[1]

    def adopt(self, numbers: Mapping[str, Any]) -> None:
        """Give the optimizer a rank's `numbers`."""
        set_config(self.optimizer, numbers)

    # States

    def allocate(self, bucket: Bucket, make: MakeState) -> None:
        """Get the states of a bucket; `start` makes them ready."""
        self._states[bucket.index] = {
            state.name: make(state.name, state.dtype_for(bucket.dtype)) for state in self._declared
        }

    def start(self, bucket: Bucket, weights: Array) -> None:
        """Fill the states that begin as a copy of the weights, shape (bucket.count,)."""
        for state in self._declared:
            if state.init == "weights":
                self._kernels.unpack(weights, self._states[bucket.index][state.name])

    def reset(self, bucket: Bucket, key: Key, weights: Array) -> None:
        """Make the states of a key what they are at first, and its count 0."""
        entry = bucket.entries[bucket.numbers[key]]
        states = self.states(bucket, entry.lo, entry.hi)
        for state in self._declared if states else ():
            if state.init == "weights":
                self._kernels.unpack(weights[entry.lo : entry.hi], states[state.name])
            else:
                states[state.name][...] = 0
        self.counts.set(bucket, key, 0)

    def states(self, bucket: Bucket, lo: int, hi: int) -> dict[str, Array]:
        """Return the states of elements ``[lo, hi)`` by name, as views; none where others update.

        Returns
        -------
        dict of ndarray, shape (hi - lo,)
        """
        states = self._states.get(bucket.index, {})
        return {name: state[lo:hi] for name, state in states.items()}

    # Updates

    def begin(
        self,
        step: Optimizer,
        bucket: Bucket,
        keys: Collection[Key],
        weights: Array,
        gradients: Array,
        skip: Array | None = None,
    ) -> Update:
        """Count an update of some keys, and return what updates their ranges.

        Parameters
        ----------
        step : Optimizer
            What `step` returned when the gradients were pushed.
        bucket : Bucket
        keys : collection
            Keys of the bucket.
        weights, gradients : ndarray, shape (bucket.count,)
            Of the whole bucket; gradients are left unchanged.
        skip : ndarray of int32, shape (1,), optional
            As of `Kernels.update`.
        """
        rows: Rows
        if self._captured is None:
            kernels = self._kernels
            self.counts.add(bucket, keys)
            rows = self._rows.rows(step, bucket)
        else:
            kernels = self._captured.kernels
            rows = self._captured.rows(bucket, keys)
        states = tuple(self._states[bucket.index].values())
        return Update(kernels, self.program, weights, gradients, states, rows, skip)

    # Captures

    def captured(self, buckets: Sequence[Bucket], kernels: Kernels) -> CapturedUpdates:
        """Allocate the scalars of a captured step, whose updates call `kernels`."""
        return CapturedUpdates(
            self.program, self.step, self.counts, buckets, self._kernels, kernels
        )

    @contextmanager
    def recording(self, captured: CapturedUpdates | None) -> Iterator[None]:
        """Take the updates that begin in a block as part of a captured step, and count none."""
        self._captured = captured
        try:
            yield
        finally:
            self._captured = None
