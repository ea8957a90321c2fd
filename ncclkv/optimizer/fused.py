"""An optimizer at work on whole buckets."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclkv.arrays.dtypes import dtype_name, is_low_precision
from ncclkv.errors import DTypeMismatch
from ncclkv.kernels.base import Array, Kernels
from ncclkv.optimizer.base import Optimizer

if TYPE_CHECKING:
    from ncclkv.table.bucket import Bucket
    from ncclkv.table.registry import KeySpec


class FusedUpdater:
    """Update ranges of buckets with one kernel call each, whatever keys lie in them.

    Parameters
    ----------
    optimizer : Optimizer
        Read anew at each push, so changes of its attributes take effect.
    kernels : Kernels
        Those of the device that holds the buckets.

    Attributes
    ----------
    optimizer : Optimizer
        As given.
    """

    def __init__(self, optimizer: Optimizer, kernels: Kernels) -> None:
        self.optimizer = optimizer
        self._kernels = kernels
        self._states: dict[int, list[Array]] = {}
        self._config: dict[str, Any] = {}
        self._step = optimizer

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

    def step(self) -> Optimizer:
        """The optimizer with its numbers as they are now; the same object until one changes.

        A push may be applied after the user has changed the learning rate for the next one.

        Raises
        ------
        UsageError
            When a factor of the optimizer's is not a finite number.
        """
        config = self.optimizer.config()
        if self._config != config:
            step = copy.copy(self.optimizer)
            # To assign the factors is to check and to copy them.
            step.lr_mult, step.wd_mult = self.optimizer.lr_mult, self.optimizer.wd_mult
            self._config, self._step = config, step
        return self._step

    def apply(
        self,
        step: Optimizer,
        bucket: Bucket,
        weights: Array,
        gradients: Array,
        lo: int,
        hi: int,
    ) -> None:
        """Update elements ``[lo, hi)`` of a bucket.

        Parameters
        ----------
        step : Optimizer
            What `step` returned when the gradients were pushed.
        bucket : Bucket
            The layout of the arrays.
        weights, gradients : ndarray, shape (bucket.count,)
            The whole bucket's; gradients are left unchanged.
        lo, hi : int
            The range of elements.
        """
        states = self._states_of(bucket)
        for start, stop, lr_mult, wd_mult in _runs(step, bucket, lo, hi):
            step.update(
                self._kernels,
                weights[start:stop],
                gradients[start:stop],
                [state[start:stop] for state in states],
                lr_mult=lr_mult,
                wd_mult=wd_mult,
            )

    def reset(self, bucket: Bucket, lo: int, hi: int) -> None:
        """Forget the state of elements ``[lo, hi)`` of a bucket."""
        for state in self._states.get(bucket.index, ()):
            state[lo:hi] = 0

    def _states_of(self, bucket: Bucket) -> list[Array]:
        """The state arrays of a bucket, made at its first update."""
        if bucket.index not in self._states:
            dtype = np.dtype(np.float32) if is_low_precision(bucket.dtype) else bucket.dtype
            self._states[bucket.index] = [
                np.zeros(bucket.count, dtype) for _ in range(self.optimizer.state_count)
            ]
        return self._states[bucket.index]


def _runs(
    optimizer: Optimizer, bucket: Bucket, lo: int, hi: int
) -> list[tuple[int, int, float, float]]:
    """Cut ``[lo, hi)`` where the factors change: start, stop, lr_mult, wd_mult."""
    lr_mult, wd_mult = optimizer.lr_mult, optimizer.wd_mult
    named = lr_mult.keys() | wd_mult.keys()
    if not named or named.isdisjoint(e.key for e in bucket.entries):
        return [(lo, hi, 1.0, 1.0)]
    return [
        (max(lo, e.lo), min(hi, e.hi), lr_mult.get(e.key, 1.0), wd_mult.get(e.key, 1.0))
        for e in bucket.entries
        if max(lo, e.lo) < min(hi, e.hi)
    ]
