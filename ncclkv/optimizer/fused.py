"""An optimizer at work on whole buckets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclkv.arrays.dtypes import dtype_name, is_low_precision
from ncclkv.errors import DTypeMismatch, NotSupported
from ncclkv.kernels.base import Array, Kernels, Segments
from ncclkv.optimizer.base import Optimizer
from ncclkv.optimizer.restore import set_config

if TYPE_CHECKING:
    from ncclkv.table.bucket import Bucket
    from ncclkv.table.registry import KeySpec


def state_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the state of weights: float32 for 16-bit floats, else theirs."""
    return np.dtype(np.float32) if is_low_precision(dtype) else dtype


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

    @property
    def can_skip(self) -> bool:
        """Whether its updates are the kernels' alone, which read a flag when they are made."""
        return bool(vars(type(self.optimizer)).get("capturable", False))

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

    def allocate(self, bucket: Bucket, zeros: Callable[[int, np.dtype[Any]], Array]) -> None:
        """Get the state of a bucket's weights.

        Parameters
        ----------
        bucket : Bucket
        zeros : callable
            ``zeros(number, dtype)`` is the array of that number, shape (bucket.count,).
        """
        dtype = state_dtype(bucket.dtype)
        self._states[bucket.index] = [
            zeros(number, dtype) for number in range(self.optimizer.state_count)
        ]

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

    def hyperparameters(self) -> dict[str, Any]:
        """The optimizer's numbers as they are now, for other ranks."""
        return self.optimizer.config()

    def step_from(self, numbers: Mapping[str, Any]) -> Optimizer:
        """The optimizer with a rank's `numbers`, which may be other than they are here."""
        if numbers == self.optimizer.config():
            return self.step()
        step = copy.copy(self.optimizer)
        step.lr_mult, step.wd_mult = self.optimizer.lr_mult, self.optimizer.wd_mult
        set_config(step, numbers)
        return step

    def adopt(self, numbers: Mapping[str, Any]) -> None:
        """Give the optimizer a rank's `numbers`."""
        set_config(self.optimizer, numbers)

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
        step.update(
            self._kernels,
            weights[lo:hi],
            gradients[lo:hi],
            [state[lo:hi] for state in self._states[bucket.index]],
            _segments(step, bucket, lo, hi),
        )

    def compute_with(self, kernels: Kernels) -> None:
        """Make other kernels those that the updates run on."""
        self._kernels = kernels

    def captured_constants(self) -> dict[str, Any]:
        """All numbers of the optimizer but its learning rate, which a captured update reads anew.

        Raises
        ------
        NotSupported
            When the optimizer's class does not say that it can be captured.
        """
        kind = type(self.optimizer)
        # Its own word and not an inherited one: a subclass may do more in its `update`.
        if not vars(kind).get("capturable", False):
            raise NotSupported(
                f"{kind.__name__} does not say that its update can be captured; set an SGD, or "
                f"make the step's calls each time"
            )
        config = self.optimizer.config()
        del config["learning_rate"]
        return config

    def reset(self, bucket: Bucket, lo: int, hi: int) -> None:
        """Forget the state of elements ``[lo, hi)`` of a bucket."""
        for state in self.states(bucket, lo, hi):
            state[...] = 0

    def states(self, bucket: Bucket, lo: int, hi: int) -> list[Array]:
        """The state of elements ``[lo, hi)`` of a bucket, as views; none where others update.

        Returns
        -------
        list of ndarray, shape (hi - lo,)
            Of dtype `state_dtype`.
        """
        return [state[lo:hi] for state in self._states.get(bucket.index, ())]


def _segments(optimizer: Optimizer, bucket: Bucket, lo: int, hi: int) -> Segments | None:
    """Cut ``[lo, hi)`` at keys, if one of them has a factor; counted from `lo`.

    The padding behind a key is updated with it: zeros stay zeros.
    """
    lr_mult, wd_mult = optimizer.lr_mult, optimizer.wd_mult
    named = lr_mult.keys() | wd_mult.keys()
    if not named or named.isdisjoint(e.key for e in bucket.entries):
        return None
    starts = [*(e.lo for e in bucket.entries[1:]), bucket.count]
    inside = [
        (min(hi, stop) - lo, e.key)
        for e, stop in zip(bucket.entries, starts, strict=True)
        if stop > lo and e.lo < hi
    ]
    return Segments(
        (0, *(stop for stop, _ in inside)),
        tuple(lr_mult.get(key, 1.0) for _, key in inside),
        tuple(wd_mult.get(key, 1.0) for _, key in inside),
    )
