"""`Rule`: the step from the sum of a key's gradients to its new value; there are four rules.

`Assign` replaces the value by the sum.  `KeepSums` is for keys whose value is the sum in the
gradient's place.  `ncclkv.engine.fused_rule.FusedRule` runs a built-in optimizer on whole ranges of
a bucket, inside the reduction.  `FunctionRule` calls the user's updater key by key, before push
returns.  `ncclkv.engine.rules_in_force.RulesInForce` holds the present rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from ncclkv.comm.destinations import To
from ncclkv.comm.types import Apply
from ncclkv.engine.bucket_state import Slot
from ncclkv.engine.reduction import Span
from ncclkv.engine.storage import Array, StoredBucket, StoredKey
from ncclkv.errors import UsageError, annotate
from ncclkv.frames import warn
from ncclkv.kernels.base import Kernels
from ncclkv.table.bucket import Bucket, Range
from ncclkv.table.registry import Key, KeySpec
from ncclkv.tracebacks import mark_from_program

if TYPE_CHECKING:
    from ncclkv.engine.norms import NormUpdates
    from ncclkv.optimizer.captured import CapturedUpdates
    from ncclkv.optimizer.scalar_rows import Pushed

UpdaterFunction = Callable[[Key, Array, Array], object]


NO_STEPS = SimpleNamespace(config=None)
"""The steps of a rule without an optimizer."""


class Rule:
    """The interface of a rule.  By default a rule has no optimizer and no states.

    Attributes
    ----------
    name : str
        Name of the updater, for error texts.
    source : object
        The updater or optimizer that the user gave.
    can_skip : bool
        Whether updates read a flag on the device when they run, and do nothing if it is set.
    replaces : bool
        Whether the sum replaces the value.
    by_key : bool
        Whether `run` updates key by key, after the reduction, on weights that no rank shares.
    norms : NormUpdates or None
        Makes the updates at a flush, if they need norms of whole keys.
    recording : CapturedUpdates or None
        The captured step that updates are part of, while the step is recorded.
    steps : Steps or SimpleNamespace
        Its ``config`` has the hyperparameters of the last step, in the same object until they
        change; None without an optimizer.
    """

    name = "none"
    source: object = None
    can_skip = True
    replaces = False
    by_key = False
    norms: NormUpdates | None = None
    recording: CapturedUpdates | None = None
    steps: Any = NO_STEPS

    def check(self, spec: KeySpec) -> None:
        """Refuse a key that the rule cannot update."""

    def allocate(self, state: StoredBucket, to: To) -> None:
        """Allocate and initialise the optimizer's states of a bucket whose weights are set.

        `to` is the destination of the sums under this rule.
        """

    def step(self, pushes: Iterable[Pushed] = ()) -> Any:
        """Return the step of a push of keys: the hyperparameters that its update will use.

        A launch reduces only pushes that have equal steps.  Without `pushes` the step is only
        checked: no key is to be updated.
        """
        return None

    def hyperparameters(self) -> Any:
        """Return this rank's current hyperparameters as plain values."""
        return None

    def step_from(self, hyperparameters: Any, pushes: Iterable[Pushed]) -> Any:
        """Return a step of a flush of keys, with another rank's hyperparameters."""
        return None

    def adopt(self, hyperparameters: Any) -> None:
        """Replace this rank's hyperparameters by another rank's."""

    def count_update(self, bucket: Bucket, keys: Set[Key]) -> None:
        """Count an update of some keys of a bucket, on every rank, also without `target`."""

    def target(
        self, state: StoredBucket, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        """Return for each span the array that receives the sum, and the update of its ranges."""
        return [(span.gradients, None) for span in spans]

    def run(self, slot: StoredKey) -> Exception | None:
        """Update a key from its sum; return the exception of the user's updater, if any."""
        return None

    def reset(self, slot: StoredKey) -> None:
        """Reset the states of a key."""

    def follow(self, slot: StoredKey) -> None:
        """Set the states that are copies of a key's value, after the value was replaced."""

    def states(self, slot: StoredKey) -> dict[str, Array]:
        """Return the states of a key by name: flat views of this rank's part, to read or write."""
        return {}

    def part(self, slot: StoredKey) -> Range:
        """Return the elements of a key of which this rank has the states."""
        return 0, slot.entry.spec.size

    def state_bytes(self, state: StoredBucket) -> int:
        """Return the bytes of the states of a bucket on this rank."""
        return 0

    def count(self, slot: StoredKey) -> int:
        """Return the count of updates of a key."""
        return 0

    def set_count(self, slot: StoredKey, count: int) -> None:
        """Set the count of updates of a key."""

    def counts_set(self) -> None:
        """Derive what depends on the counts of all keys, after calls of `set_count` or `reset`."""

    def dispose(self) -> Exception | None:
        """End the use of the rule; return the exception of the user's ``dispose``, if any."""
        return None

    def replace_buckets(self, old: Sequence[Bucket], new: Sequence[Bucket]) -> None:
        """Give the keys of new buckets the counts that they have in old buckets, which are dropped.

        The states of the new buckets are set already.
        """

    def captured(self, states: Sequence[StoredBucket], kernels: Kernels) -> CapturedUpdates | None:
        """Allocate the scalars of a captured step of some buckets, whose updates call `kernels`.

        Raises
        ------
        UsageError
            When the rule cannot be captured.
        """
        return None


class Assign(Rule):
    """The rule of a store without an updater: the sum replaces the value."""

    replaces = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def target(
        self, state: StoredBucket, spans: Sequence[Span], skip_flag: Array | None
    ) -> list[tuple[Array, Apply | None]]:
        if skip_flag is None:
            targets: list[tuple[Array, Apply | None]] = []
            for span in spans:  # a comprehension is a call more, in each push
                targets.append((span.weights, None))
            return targets
        return [(span.gradients, self._assign_unless(skip_flag, span)) for span in spans]

    def _assign_unless(self, skip_flag: Array, span: Span) -> Apply:
        """Return an update that copies ranges of a span's sum, unless the flag is set then."""

        def apply(lo: int, hi: int) -> None:
            self._kernels.assign(span.gradients[lo:hi], span.weights[lo:hi], skip_flag)

        return apply


class KeepSums(Rule):
    """The rule of a store whose keys have no memory for values: sums stay in the gradients."""

    name = "sums"
    can_skip = False  # the program must see a skip before it uses the sums
    replaces = True


class FunctionRule(Rule):
    """The rule of the user's updater, which is called key by key.

    Parameters
    ----------
    source : callable, or object with ``update``
        The updater as the user gave it.
    update : callable
        ``update(key, input, stored)`` changes `stored` in place.
    dispose : callable
        Called once, when the updater is replaced or the store is closed.
    rank : int
        This rank, for error texts.
    name : str
        Name of the updater, for error texts.
    warns : bool
        Whether this rank warns of a result, which is ignored; ranks with equal updates warn once.
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
        *,
        warns: bool,
    ) -> None:
        self.source = source
        self._update = update
        self._dispose = dispose
        self._rank = rank
        self.name = name
        self._warns = warns

    def run(self, slot: StoredKey) -> Exception | None:
        key, shape = slot.entry.key, slot.entry.spec.shape
        stored = slot.weight.reshape(shape)
        gradient = cast(Slot, slot).gradient  # another storage has a rule of its own
        try:
            result = self._update(key, gradient.reshape(shape), stored)
            # An in-place operation of NumPy, as a lambda has it, returns the array itself.
            if result is not None and result is not stored and self._warns:
                self._warn(key, result)
        except Exception as error:
            annotate(error, f"in the updater, at key {key!r} on rank {self._rank}")
            mark_from_program(error)
            return error
        return None

    def _warn(self, key: Key, result: object) -> None:
        """Warn of a result of the updater, at the program's call of the verb."""
        self._warns = False
        warn(
            f"the updater {self.name} returned a value of type {type(result).__name__} for key "
            f"{key!r}, which is ignored: an updater changes the stored value in place, as by "
            f"stored[...] = ..., and returns None"
        )

    def captured(self, states: Sequence[StoredBucket], kernels: Kernels) -> None:
        raise UsageError(
            f"the updater {self.name} is a function, which a captured step would not call; set an "
            f"optimizer instead, or repeat the step's calls without a capture"
        )

    def dispose(self) -> Exception | None:
        dispose, self._dispose = self._dispose, lambda: None  # called once, even if it raises
        try:
            dispose()
        except Exception as error:
            annotate(error, f"in dispose() of the updater {self.name} on rank {self._rank}")
            mark_from_program(error)
            return error
        return None
