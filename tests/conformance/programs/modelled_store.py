"""A store, its model, and the arrays that a program holds on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ncclkv.errors import DTypeMismatch, KeyNotInitialized, UpdaterError, UsageError
from tests.conformance.programs.arrays import Array, dtype_of, equal
from tests.conformance.programs.model import Adder, Model, UpdaterFailed
from tests.conformance.programs.plan import Key, KeyPlan, StorePlan
from tests.harness.context import context_of

Errors = Sequence[type[BaseException]]
Writes = Sequence[tuple[Key, Any]]

# Count of arrays of earlier calls that are checked.
_HELD = 8


class Recorder:
    """An updater as a user writes it, which records its calls."""

    def __init__(self, adder: Adder) -> None:
        self.adder = adder
        self.calls: list[tuple[Key, Array]] = []
        self.disposed = 0

    def update(self, key: Key, total: Array, stored: Array) -> None:
        self.calls.append((key, total.copy()))
        self.adder.fold(key, total, stored)

    def dispose(self) -> None:
        self.disposed += 1


@dataclass
class Held:
    """An array of an earlier call, its key, and its expected contents.

    `written` arrays were written by the store and are equal on every rank.  An array that a group
    has yet to write holds this rank's own values.
    """

    key: Key
    array: Any
    expected: Array
    written: bool


@dataclass
class ModelledStore:
    """A program's store on one rank, with its model.

    Attributes
    ----------
    held : list of Held
        Arrays that the store wrote, or has yet to write.
    reads : list of (key, array)
        What the open group must write at its end.
    gradients : dict of int to array
        The ``grad_view`` arrays that the program has had: they change as the store likes.
    updater : Recorder or None
    disposable : bool
        Whether the store was given its ``dispose`` too.
    """

    kv: Any
    plan: StorePlan
    model: Model
    held: list[Held] = field(default_factory=list)
    reads: list[tuple[Key, Any]] = field(default_factory=list)
    gradients: dict[int, Array] = field(default_factory=dict)
    updater: Recorder | None = None
    disposable: bool = False

    @property
    def rank(self) -> int:
        return int(self.kv.rank)

    @property
    def in_group(self) -> bool:
        return self.model.block is not None

    @property
    def forbidden(self) -> list[type[BaseException]]:
        """Return the errors of verbs other than push and pull in the present block."""
        return [UsageError] if self.in_group else []

    def key(self, index: int) -> KeyPlan:
        return self.plan.keys[index % len(self.plan.keys)]

    def distinct(self, indices: Iterable[int]) -> list[KeyPlan]:
        """Return the plans of some keys, each once."""
        return list(dict.fromkeys(self.key(index) for index in indices))

    def missing(self, plans: Iterable[KeyPlan]) -> list[type[BaseException]]:
        """Return the errors of a call that uses these keys."""
        known = self.model.values
        return [KeyNotInitialized for plan in plans if plan.key not in known]

    def inadmissible(self, plans: Iterable[KeyPlan]) -> list[type[BaseException]]:
        """Return the errors of the store's rule for these keys, if they are new."""
        new = [plan for plan in plans if plan.key not in self.model.values]
        return [DTypeMismatch for plan in new if not self.model.rule.admits(dtype_of(plan.dtype))]

    def call(
        self,
        call: Callable[[], Any],
        errors: Errors = (),
        *,
        raises: bool = False,
        reads: bool = False,
    ) -> Any:
        """Make a call that must be refused with one of `errors`, if there are any.

        `raises` tells that the updater must raise, where it runs; `reads` that ranks where it runs
        not run must hear of it.
        """
        expected = tuple(errors) or ((UpdaterFailed,) if raises and self.updates else ())
        if reads and not errors and not self.in_group:
            expected += (UpdaterError,) if self.told else ()
            self.model.unreported = False
        try:
            result = call()
        except expected as error:
            text = " ".join([str(error), *getattr(error, "__notes__", [])])
            assert f"rank {self.rank}" in text or not raises, f"no rank in {text!r}"
            return None
        names = " or ".join(sorted({each.__name__ for each in expected}))
        assert not expected, f"the call raised nothing instead of {names}"
        return result

    @property
    def told(self) -> bool:
        """Return whether the next reading call reports an updater's error to this rank."""
        return self.model.unreported and not self.updates and not self.in_group

    @property
    def updates(self) -> bool:
        return self.model.updates(self.rank)

    def owns(self, key: Key) -> bool:
        """Return whether this rank runs the updater of a key that has one rank."""
        slot = context_of(self.kv).engine.layout[key]
        return self.model.divided and slot.state.updates_key(slot.entry)

    def hold(self, key: Key, array: Any, *, written: bool = True) -> None:
        """Record the contents of an array."""
        if id(array) in self.gradients:
            return
        self.held = [held for held in self.held if held.array is not array][-_HELD:]
        self.held.append(Held(key, array, np.array(array), written))

    def ordered(self, writes: Writes) -> Writes:
        """Return keys in update order, as one call writes them."""
        keys = self.model.update_order({key for key, _ in writes})
        return sorted(writes, key=lambda write: keys.index(write[0]))

    def expect(self, writes: Writes) -> None:
        """Record the arrays that a call will write; in a group at its end."""
        if self.in_group:
            self.reads += self.ordered(writes)
            for key, array in writes:
                self.hold(key, array, written=False)

    def written(self, writes: Writes) -> None:
        """Check the arrays that a call wrote, unless a group is open."""
        if not self.in_group:
            self.compare(self.ordered(writes))

    def compare(self, writes: Writes) -> None:
        """Check arrays in the order of the store's writes; the last write of an array counts."""
        last = {id(array): (key, array) for key, array in writes}
        for key, array in last.values():
            self.same(f"pull of key {key!r}", array, self.model.values[key].astype(array.dtype))
            self.hold(key, array)
        self.model.settle(key for key, _ in writes)

    def same(self, what: str, got: Any, expected: Array) -> None:
        """Fail unless `got` is `expected`."""
        if not equal(got, expected):
            raise AssertionError(f"{what}: expected {expected.tolist()}, got {got.tolist()}")

    def check(self) -> None:
        """Check that all arrays of earlier calls are unchanged."""
        for held in self.held:
            self.same(f"array pulled of key {held.key!r} before", held.array, held.expected)
        assert self.kv.keys() == [*self.model.values], f"keys {self.kv.keys()}"
        calls, self.model.calls = self.model.calls, []
        if self.updater is not None:
            seen, self.updater.calls = self.updater.calls, []
            expected = [call for call in calls if self.updates or self.owns(call[0])]
            keys = [key for key, _ in expected]
            assert [key for key, _ in seen] == keys, f"updater saw {seen}, expected keys {keys}"
            for (key, got), (_, total) in zip(seen, expected, strict=True):
                self.same(f"input of the updater for key {key!r}", got, total)
