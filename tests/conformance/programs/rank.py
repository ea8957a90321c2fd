"""A store, its model, and what a program has of it on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ncclkv.errors import DTypeMismatch, KeyNotInitialized, UpdaterError, UsageError
from tests.conformance.programs.arrays import Array, dtype_of, equal
from tests.conformance.programs.model import Adder, Model, Stumble
from tests.conformance.programs.plan import Key, KeyPlan, StorePlan

Errors = Sequence[type[BaseException]]
Writes = Sequence[tuple[Key, Any]]

# So many arrays of earlier calls are watched.
_HELD = 8


class Recorder:
    """An updater as a user writes it, which remembers its calls."""

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
    """An array of an earlier call, what it must still hold, and the key it is of.

    `written` says that the store wrote it, so that it is the same on every rank.  One that a group
    has yet to write holds what this rank had in it.
    """

    key: Key
    array: Any
    expected: Array
    written: bool


@dataclass
class Seat:
    """Where a program meets a store.

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
        """Why verbs other than push and pull are refused now."""
        return [UsageError] if self.in_group else []

    def key(self, number: int) -> KeyPlan:
        return self.plan.keys[number % len(self.plan.keys)]

    def distinct(self, numbers: Iterable[int]) -> list[KeyPlan]:
        """The plans of some keys, each once."""
        return list(dict.fromkeys(self.key(number) for number in numbers))

    def missing(self, plans: Iterable[KeyPlan]) -> list[type[BaseException]]:
        """Why these keys cannot be used."""
        known = self.model.values
        return [KeyNotInitialized for plan in plans if plan.key not in known]

    def inadmissible(self, plans: Iterable[KeyPlan]) -> list[type[BaseException]]:
        """Why the store's rule refuses these keys, where they are new."""
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

        `raises` tells that the updater must raise, where it runs; `reads` that ranks where it does
        not run must hear of it.
        """
        expected = tuple(errors) or ((Stumble,) if raises and self.updates else ())
        if reads and not errors and not self.in_group:
            expected += (UpdaterError,) if self.told else ()
            self.model.untold = False
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
        """Whether the next call that reads tells this rank what the updater has raised."""
        return self.model.untold and not self.updates and not self.in_group

    @property
    def updates(self) -> bool:
        return self.model.updates(self.rank)

    def hold(self, key: Key, array: Any, *, written: bool = True) -> None:
        """Remember what an array holds."""
        if id(array) in self.gradients:
            return
        self.held = [held for held in self.held if held.array is not array][-_HELD:]
        self.held.append(Held(key, array, np.array(array), written))

    def ordered(self, writes: Writes) -> Writes:
        """Keys in update order, as one call writes them."""
        keys = self.model.update_order({key for key, _ in writes})
        return sorted(writes, key=lambda write: keys.index(write[0]))

    def expect(self, writes: Writes) -> None:
        """What a call is about to write; in a group it waits for the end."""
        if self.in_group:
            self.reads += self.ordered(writes)
            for key, array in writes:
                self.hold(key, array, written=False)

    def written(self, writes: Writes) -> None:
        """Check what a call wrote, unless a group is open."""
        if not self.in_group:
            self.compare(self.ordered(writes))

    def compare(self, writes: Writes) -> None:
        """Check arrays that the store wrote in this order: the last word on an array counts."""
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
        """Hold everything that nobody should have changed against what it was."""
        for held in self.held:
            self.same(f"array pulled of key {held.key!r} before", held.array, held.expected)
        assert self.kv.keys() == [*self.model.values], f"keys {self.kv.keys()}"
        calls, self.model.calls = self.model.calls, []
        if self.updater is not None:
            seen, self.updater.calls = self.updater.calls, []
            expected = calls if self.updates else []
            keys = [key for key, _ in expected]
            assert [key for key, _ in seen] == keys, f"updater saw {seen}, expected keys {keys}"
            for (key, got), (_, total) in zip(seen, expected, strict=True):
                self.same(f"input of the updater for key {key!r}", got, total)
