"""What becomes of a sum over ranks: three rules.

`Assign`: it replaces the value.  `FusedRule`: a built-in optimizer updates whole ranges of a
bucket, lazily.  `FunctionRule`: the user's updater is called key by key before push returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.errors import UsageError, annotate
from ncclkv.kernels.base import Kernels
from ncclkv.table.bucket import Bucket
from ncclkv.table.registry import Key, KeySpec

Dtype = np.dtype[Any]
UpdaterFunction = Callable[[Key, Array, Array], object]


class FusedUpdater(Protocol):
    """What a built-in optimizer offers the engine."""

    optimizer: Any

    @property
    def can_skip(self) -> bool:
        """Whether its updates can be left out by a flag that they read when they are made."""

    def check(self, spec: KeySpec) -> None:
        """Refuse keys that it cannot update."""

    def allocate(self, bucket: Bucket, zeros: Callable[[int, Dtype], Array]) -> None:
        """Get what it will remember of a bucket: the arrays of these numbers and dtypes."""

    def step(self) -> Any:
        """The update as its hyperparameters are now: an object that later changes do not touch."""

    def hyperparameters(self) -> Any:
        """Its hyperparameters as they are now, to be told to other ranks."""

    def step_from(self, numbers: Any) -> Any:
        """The update with a rank's `numbers`."""

    def adopt(self, numbers: Any) -> None:
        """Make a rank's `numbers` the optimizer's own."""

    def apply(
        self, step: Any, bucket: Bucket, weights: Array, gradients: Array, lo: int, hi: int
    ) -> None:
        """Update elements ``[lo, hi)`` of a bucket's weights with its reduced gradients."""

    def compute_with(self, kernels: Kernels) -> None:
        """Make other kernels those that the updates run on."""

    def captured_constants(self) -> dict[str, Any]:
        """All numbers of the optimizer that a captured update keeps: not its learning rate."""

    def reset(self, bucket: Bucket, lo: int, hi: int) -> None:
        """Forget what it remembers of elements ``[lo, hi)``."""

    def states(self, bucket: Bucket, lo: int, hi: int) -> list[Array]:
        """What it remembers of elements ``[lo, hi)``: views, to be read or written."""


class Rule:
    """What the engine asks of any rule."""

    name = "none"
    source: object = None
    """The updater or optimizer that the user gave."""

    can_skip = True
    """Whether its updates can be left out by a flag that they read when they are made."""

    def check(self, spec: KeySpec) -> None:
        """Refuse keys that the rule cannot update."""

    def allocate(self, state: BucketState) -> None:
        """Get what is needed for a bucket."""

    def step(self) -> Any:
        """What was in force when a key was pushed; keys of different steps fly apart."""
        return None

    def hyperparameters(self) -> Any:
        """What is in force now, as plain values; other ranks may have other ones."""
        return None

    def step_from(self, numbers: Any) -> Any:
        """What is in force where another rank's `numbers` are."""
        return None

    def adopt(self, numbers: Any) -> None:
        """Put a rank's `numbers` in force here."""

    def reset(self, slot: Slot) -> None:
        """Forget what is remembered of a key."""

    def states(self, slot: Slot) -> list[Array]:
        """What is remembered of a key: flat views, to be read or written."""
        return []

    def dispose(self) -> Exception | None:
        """End the use of the rule; return what the user's code raises there."""
        return None

    def compute_with(self, kernels: Kernels) -> None:
        """Make other kernels those that updates run on."""

    def captured_constants(self) -> dict[str, Any]:
        """The numbers that a captured step keeps; `UsageError` when there can be no such step."""
        return {}

    def learning_rate(self) -> float | None:
        """The number that a captured step reads anew at each replay, if there is one."""
        return None


class Assign(Rule):
    """The sum replaces the value."""


class FusedRule(Rule):
    """A built-in optimizer, over whole ranges of buckets."""

    def __init__(self, updater: FusedUpdater, name: str) -> None:
        self.updater = updater
        self.source = updater.optimizer
        self.can_skip = updater.can_skip
        self.name = name

    def check(self, spec: KeySpec) -> None:
        self.updater.check(spec)

    def allocate(self, state: BucketState) -> None:
        self.updater.allocate(state.bucket, state.optimizer_state)

    def step(self) -> Any:
        return self.updater.step()

    def hyperparameters(self) -> Any:
        return self.updater.hyperparameters()

    def step_from(self, numbers: Any) -> Any:
        return self.updater.step_from(numbers)

    def adopt(self, numbers: Any) -> None:
        self.updater.adopt(numbers)

    def apply(self, state: BucketState, step: Any, start: int, lo: int, hi: int) -> None:
        """Update a range counted from element `start` of the bucket."""
        self.updater.apply(
            step, state.bucket, state.weights, state.gradients, start + lo, start + hi
        )

    def compute_with(self, kernels: Kernels) -> None:
        self.updater.compute_with(kernels)

    def captured_constants(self) -> dict[str, Any]:
        return self.updater.captured_constants()

    def learning_rate(self) -> float | None:
        rate: float = self.updater.optimizer.learning_rate
        return rate

    def reset(self, slot: Slot) -> None:
        self.updater.reset(slot.state.bucket, slot.entry.lo, slot.entry.hi)

    def states(self, slot: Slot) -> list[Array]:
        return self.updater.states(slot.state.bucket, slot.entry.lo, slot.entry.hi)


class Raised(NamedTuple):
    """An exception of the user's updater, and the key that it was called for."""

    error: Exception
    key: Key


class FunctionRule(Rule):
    """The user's updater, called for one key after another.

    Parameters
    ----------
    source : callable, or object with ``update``
        What the user gave.
    update : callable
        ``update(key, input, stored)`` changes `stored` in place.
    dispose : callable
        Called once, when the updater is replaced or the store closed.
    rank : int
        For messages.
    name : str
        What the user calls it.
    """

    can_skip = False

    def __init__(
        self,
        source: object,
        update: UpdaterFunction,
        dispose: Callable[[], object],
        rank: int,
        name: str,
    ) -> None:
        self.source = source
        self._update = update
        self._dispose = dispose
        self._rank = rank
        self.name = name

    def run(self, slots: Sequence[Slot]) -> Raised | None:
        """Update the keys in the order given, up to an exception; return it, with its key named.

        With the updater on one rank, the others know nothing of the exception: what all ranks have
        to do together must be done before it is raised.
        """
        for slot in slots:
            key, shape = slot.entry.key, slot.entry.spec.shape
            try:
                self._update(key, slot.gradient.reshape(shape), slot.weight.reshape(shape))
            except Exception as error:
                annotate(error, f"in the updater, at key {key!r} on rank {self._rank}")
                return Raised(error, key)
        return None

    def captured_constants(self) -> dict[str, Any]:
        raise UsageError(
            f"the updater {self.name} is a function, which a captured step would not call; set an "
            f"optimizer instead, or make the step's calls each time"
        )

    def dispose(self) -> Exception | None:
        dispose, self._dispose = self._dispose, _nothing  # once, also when it raises
        try:
            dispose()
        except Exception as error:
            annotate(error, f"in dispose() of the updater {self.name} on rank {self._rank}")
            return error
        return None


def _nothing() -> None:
    """Do nothing: the updater has been disposed of."""
