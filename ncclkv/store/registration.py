"""Registration: gives keys a first or a new value, and describes the keys of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ncclkv.arguments import check_flag, check_known
from ncclkv.comm.types import OPS
from ncclkv.engine.storage import Array
from ncclkv.errors import KeyTypeMismatch, UsageError, about
from ncclkv.other_names import OTHER_OPS
from ncclkv.store import check
from ncclkv.store.agreement import from_rank, propose
from ncclkv.store.compression import check_named
from ncclkv.store.context import Component
from ncclkv.store.keys import Singles, one_key, single
from ncclkv.store.session import BLOCKS
from ncclkv.table.registry import Key, KeySpec


@dataclass(frozen=True)
class Assignment:
    """Values of keys on this rank; all ranks will get rank 0's.

    Attributes
    ----------
    specs : list of KeySpec
        New keys.
    first : list of ndarray
        The values of the new keys.
    replaced : dict of ndarray by key
        New values of keys that the store has.
    reset_states : bool
        Whether the optimizer's states of these keys begin anew.
    """

    specs: list[KeySpec]
    first: list[Array]
    replaced: dict[Key, Array]
    reset_states: bool = True


class Registration(Component):
    """Adds keys and replaces values, on all ranks or on none."""

    # Verbs

    def initialize(self, key: Any, value: Any, op: Any) -> None:
        """Give new keys their first value; collective."""
        with self._session.verb("init"):
            self.assign(
                "init", lambda: self.check_values("init", single("init", key, value), [], op)
            )

    def initialize_sums(self, key: Any, like: Any, op: Any) -> None:
        """Make new keys without values, of the shapes and dtypes of arrays; collective."""
        with self._session.verb("init"):
            self.assign("init", lambda: self._check_new("init", single("init", key, like), op))

    def replace_values(self, key: Any, value: Any, *, reset_states: Any) -> None:
        """Replace the values of keys that the store has; collective."""

        def make() -> Assignment:
            resets = check_flag("reset: reset_states", reset_states)
            made = self.check_values("reset", [], single("reset", key, value))
            return replace(made, reset_states=resets)

        with self._session.verb("reset"):
            self.assign("reset", make)

    def view_value(self, key: Any) -> Array:
        """Wait for sums in flight; return a key's value as of the last flush, without a copy."""
        with self._session.verb("value", allowed_inside=BLOCKS):
            name = one_key(key)
            self.assign_slot(name)
            view: Array = self._engine.current(name).view()
            self._engine.layout[name].state.viewed = True
            return view

    def all_keys(self) -> list[Key]:
        """Return all keys, in the order of their initialisation."""
        return [spec.key for spec in self._engine.layout.registry]

    def has_key(self, key: Any) -> bool:
        """Return whether the store has a key."""
        try:
            return one_key(key) in self._engine.layout.registry
        except KeyTypeMismatch:
            return False

    def spec_of(self, key: Any) -> KeySpec:
        """Return a key's shape, dtype, op and index."""
        with self._session.prefixing_rank():
            return self._engine.layout.registry[one_key(key)]

    # For other components

    def assign(self, verb: str, make: Callable[[], Assignment]) -> None:
        """Give every rank the values that rank 0 has passed; collective.

        Parameters
        ----------
        verb : str
        make : callable
            Returns the values on this rank, or raises.

        Raises
        ------
        SpecMismatch
            On every rank, when ranks name different keys, or `make` raises on some ranks only.
        """

        def proposal() -> tuple[Assignment, list[str]]:
            made = make()
            kept = [] if made.reset_states else ["reset_states=False"]
            names = [str(spec) for spec in made.specs] + [repr(name) for name in made.replaced]
            return made, [*names, *kept]

        layout = self._engine.layout
        self._calls.record(verb)
        mine, sealed = propose(self._comm, verb, proposal, note=layout.sealed)
        self._context.memory_check.check(verb, mine.specs)
        layout.seal_on_all(verb, sealed)
        # Sums need no values, which would take as much memory again.
        first = mine.first if layout.has_values else []
        values = from_rank(self._comm, [*first, *mine.replaced.values()])
        layout.add(mine.specs, values[: len(first)] if layout.has_values else mine.first)
        if mine.replaced:
            replaced = dict(zip(mine.replaced, values[len(first) :], strict=True))
            self._engine.replace(replaced, reset_states=mine.reset_states)

    def assign_slot(self, key: Key) -> None:
        """Give a key its slot in a local verb, in which a MemoryError breaks nothing."""
        try:
            self._engine.layout[key]
        except MemoryError as error:
            self._session.checks.raised = error
            raise

    def check_values(
        self, verb: str, new: Singles, replaced: Singles, op: Any = "sum"
    ) -> Assignment:
        """Check first values of keys that are new, and new values of keys that the store has."""
        layout, kernels = self._engine.layout, self._engine.kernels
        if new and not layout.has_values:
            raise UsageError(
                f"{verb}: key {new[0][0]!r} is not of the module that DataParallel wraps, and its "
                f"store serves this module alone; create another store for keys of your own"
            )
        made = self._check_new(verb, new, op)
        for name, given in replaced:
            if name in made.replaced:
                raise UsageError(
                    f"{verb}: key {name!r} is twice in the list; name it once", key=name
                )
            with about(name):
                made.replaced[name] = check.value(verb, layout.registry[name], given, kernels)
        return made

    def _check_new(self, verb: str, new: Singles, op: Any) -> Assignment:
        """Check new keys, and the arrays that give their shapes and dtypes."""
        registry, kernels = self._engine.layout.registry, self._engine.kernels
        check_known(f"{verb}: op", op, OPS, OTHER_OPS)
        registry.check_new(name for name, _ in new)
        made = Assignment([], [], {})
        for index, (name, given) in enumerate(new, start=len(registry)):
            with about(name):
                value = check.first_value(f"{verb} of key {name!r}", given, kernels)
                check.reducible(self._comm, op, value.dtype, f"{verb} of key {name!r}")
                made.specs.append(KeySpec(name, index, value.shape, value.dtype, op))
                check.updatable(self._engine.rule.check, made.specs[-1])
                check_named(self._engine.reductions.rule(name), made.specs[-1])
            made.first.append(value)
        return made
