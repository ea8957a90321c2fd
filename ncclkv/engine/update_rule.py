"""`Rule`: the step from the sum of a key's gradients to its new value; there are three rules.

`Assign`: the sum replaces the value.  `ncclkv.engine.fused_rule.FusedRule`: a built-in optimizer
updates whole ranges of a bucket, inside the reduction.  `FunctionRule`: the user's updater is
called key by key before push returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from ncclkv.comm.types import Apply
from ncclkv.engine.bucket_state import Array, BucketState, Slot
from ncclkv.engine.span import Span
from ncclkv.errors import UsageError, annotate
from ncclkv.kernels.base import Kernels
from ncclkv.optimizer.captured import CapturedUpdates
from ncclkv.table.registry import Key, KeySpec

UpdaterFunction = Callable[[Key, Array, Array], object]


class Rule:
    """The interface of a rule, and its defaults: no optimizer, no state.

    Attributes
    ----------
    name : str
        Name of the updater, for messages.
    source : object
        The updater or optimizer that the user gave.
    can_skip : bool
        Whether updates can be skipped by a device flag that they read when they run.
    replaces : bool
        Whether the sum replaces the value.
    by_key : bool
        Whether `run` updates key by key, after the reduction, on weights that no rank shares.
    """

    name = "none"
    source: object = None
    can_skip = True
    replaces = False
    by_key = False

    def check(self, spec: KeySpec) -> None:
        """Refuse a key that the rule cannot update."""

    def allocate(self, state: BucketState) -> None:
        """Allocate the optimizer's states of a bucket."""

    def start(self, state: BucketState) -> None:
        """Initialise the states of a bucket, whose weights have their values."""

    def step(self) -> Any:
        """Return the update of now; pushes under different steps are launched apart."""
        return None

    def hyperparameters(self) -> Any:
        """Return the hyperparameters of now as plain values; other ranks may have others."""
        return None

    def step_from(self, numbers: Any) -> Any:
        """Return the update with another rank's hyperparameters."""
        return None

    def adopt(self, numbers: Any) -> None:
        """Set this rank's hyperparameters to another rank's."""

    def target(
        self, state: BucketState, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        """Return, for each span, the array that receives the sum and the update of its ranges."""
        return [(span.gradients, None) for span in spans]

    def run(self, slots: Sequence[Slot]) -> Raised | None:
        """Update keys, in the order given, from their reduced gradients."""
        return None

    def reset(self, slot: Slot) -> None:
        """Reset the states of a key."""

    def states(self, slot: Slot) -> dict[str, Array]:
        """Return the states of a key by name: flat views, to be read or written."""
        return {}

    def count(self, slot: Slot) -> int:
        """Return the number of updates of a key."""
        return 0

    def set_count(self, slot: Slot, count: int) -> None:
        """Set the number of updates of a key."""

    def dispose(self) -> Exception | None:
        """End the use of the rule; return the exception of the user's ``dispose``, if any."""
        return None

    def captured(self, states: Sequence[BucketState], kernels: Kernels) -> CapturedUpdates | None:
        """Allocate the scalars of a captured step of some buckets, whose updates call `kernels`.

        Raises
        ------
        UsageError
            When the rule cannot be captured.
        """
        return None

    def recording(self, captured: CapturedUpdates | None) -> AbstractContextManager[None]:
        """Make the updates that begin in a ``with`` block part of a captured step."""
        return nullcontext()


class Assign(Rule):
    """The rule of a store without an updater: the sum replaces the value."""

    replaces = True

    def target(
        self, state: BucketState, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        return [(span.weights, None) for span in spans]


class Raised(NamedTuple):
    """An exception of the user's updater, and the key of the call."""

    error: Exception
    key: Key


class FunctionRule(Rule):
    """The rule of the user's updater, called for one key after another.

    Parameters
    ----------
    source : callable, or object with ``update``
        The updater as the user gave it.
    update : callable
        ``update(key, input, stored)`` changes `stored` in place.
    dispose : callable
        Called once, when the updater is replaced or the store closed.
    rank : int
        For messages.
    name : str
        Name of the updater, for messages.
    """

    can_skip = False
    by_key = True

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
        """Update the keys in the order given, up to an exception, which is returned.

        The caller raises it at the end of the verb.  Ranks that run no updater expect the verb's
        collectives first, and would otherwise wait until the deadline.
        """
        for slot in slots:
            key, shape = slot.entry.key, slot.entry.spec.shape
            try:
                self._update(key, slot.gradient.reshape(shape), slot.weight.reshape(shape))
            except Exception as error:
                annotate(error, f"in the updater, at key {key!r} on rank {self._rank}")
                return Raised(error, key)
        return None

    def captured(self, states: Sequence[BucketState], kernels: Kernels) -> None:
        raise UsageError(
            f"the updater {self.name} is a function, which a captured step would not call; set an "
            f"optimizer instead, or make the step's calls each time"
        )

    def dispose(self) -> Exception | None:
        dispose, self._dispose = self._dispose, _already_disposed  # once, also when it raises
        try:
            dispose()
        except Exception as error:
            annotate(error, f"in dispose() of the updater {self.name} on rank {self._rank}")
            return error
        return None


def _already_disposed() -> None:
    """Stand for the user's ``dispose`` after its one call."""
