"""Registration: gives keys their first or a new value, and describes the keys there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkv.arguments import check_length, nearest
from ncclkv.arrays.dtypes import check_dtype
from ncclkv.engine.bucket_state import Array
from ncclkv.errors import KeyTypeMismatch, UsageError
from ncclkv.store import check
from ncclkv.store.agreement import from_rank, propose
from ncclkv.store.context import Context
from ncclkv.store.keys import one_key, pairs, single
from ncclkv.store.session import BLOCKS
from ncclkv.table.registry import Key, KeySpec

_OPS = ("sum", "avg", "max", "min")


@dataclass(frozen=True)
class Assignment:
    """Values for keys; all ranks will get rank 0's.

    Attributes
    ----------
    specs : list of KeySpec
        New keys.
    first : list of ndarray
        The values of the new keys.
    known : dict of ndarray by key
        New values of keys that the store has.
    """

    specs: list[KeySpec]
    first: list[Array]
    known: dict[Key, Array]


class Registration:
    """Adds keys and replaces values, alike on all ranks or on none."""

    def __init__(self, context: Context) -> None:
        self._comm = context.comm
        self._engine = context.engine
        self._session = context.session
        self._calls = context.calls
        self._memory_check = context.memory_check

    # Verbs

    def initialize(self, key: Any, value: Any, op: Any) -> None:
        """Give new keys their first value."""
        with self._session.verb("init"):
            self.assign("init", lambda: self._new_values("init", key, value, op))

    def replace_values(self, key: Any, value: Any) -> None:
        """Replace the values of keys that the store has."""
        with self._session.verb("reset"):
            self.assign("reset", lambda: self._replacements("reset", key, value))

    def view_value(self, key: Any) -> Array:
        """Return a key's value as of the last flush, without a copy."""
        with self._session.verb("value", allowed_inside=BLOCKS):
            name = one_key(key)
            self.place(name)
            view: Array = self._engine.current(name).view()
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

    def explain(self) -> str:
        """Return the buckets as a table."""
        return self._engine.layout.explain(self._engine.placement.owner)

    # For other components

    def any_values(self, verb: str, key: Any, value: Any) -> Assignment:
        """Check the values of keys, whether the store has them or not."""
        registry = self._engine.layout.registry
        found = single(verb, pairs(verb, key, value))
        new = [pair for pair in found if pair[0] not in registry]
        old = [pair for pair in found if pair[0] in registry]
        first = self._new_values(verb, [name for name, _ in new], [given for _, given in new])
        known = self._replacements(verb, [name for name, _ in old], [given for _, given in old])
        return Assignment(first.specs, first.first, known.known)

    def assign(self, verb: str, make: Callable[[], Assignment]) -> None:
        """Make rank 0's values every rank's; collective.

        Parameters
        ----------
        verb : str
        make : callable
            Returns the values on this rank, or raises.

        Raises
        ------
        SpecMismatch
            On every rank, when ranks name other keys, or only some ranks could make their values.
        """

        def proposal() -> tuple[Assignment, list[str]]:
            made = make()
            return made, [str(spec) for spec in made.specs] + [repr(name) for name in made.known]

        layout = self._engine.layout
        self._calls.record(verb)
        mine, sealed = propose(self._comm, verb, proposal, note=layout.sealed)
        self._memory_check.check(verb, mine.specs)
        self.seal_alike(verb, sealed)
        values = from_rank(self._comm, [*mine.first, *mine.known.values()])
        layout.add(mine.specs, values[: len(mine.specs)])
        if mine.known:
            self._engine.replace(dict(zip(mine.known, values[len(mine.specs) :], strict=True)))

    def seal_alike(self, verb: str, sealed: Sequence[bool]) -> None:
        """Give all keys their places if a rank has; collective.

        The places of later keys depend on it.

        Parameters
        ----------
        verb : str
        sealed : sequence of bool
            Whether all keys have places, on each rank.
        """
        if any(sealed) and not all(sealed):
            self._engine.layout.seal()
            # Ranks share memory: no first value may be written after the values written next.
            self._comm.control.barrier(verb)

    def place(self, key: Key) -> None:
        """Give a key its place in a local verb, where a lack of memory breaks nothing."""
        try:
            self._engine.layout[key]
        except MemoryError as error:
            self._session.checks.failed(error)
            raise

    # Checks of the values given

    def _new_values(self, verb: str, key: Any, value: Any, op: Any = "sum") -> Assignment:
        """Check the first values of keys, none of which the store may have."""
        found = single(verb, pairs(verb, key, value))
        check_length(f"{verb}: op", op)
        if not (isinstance(op, str) and op in _OPS):
            hint = nearest(op, _OPS)
            raise UsageError(f"{verb}: unknown op {op!r}; {hint}The ops are {', '.join(_OPS)}")
        registry = self._engine.layout.registry
        registry.check_new(name for name, _ in found)
        specs, values = [], []
        for index, (name, given) in enumerate(found, start=len(registry)):
            view = self._engine.kernels.value(given, f"{verb} of key {name!r}")
            dtype = check_dtype(view.dtype, f"{verb} of key {name!r}")
            self._comm.check(op, dtype, f"{verb} of key {name!r}: ")
            specs.append(KeySpec(name, index, view.shape, dtype, op))
            check.updatable(self._engine.rule.check, specs[-1])
            values.append(view.astype(dtype, copy=False))
        return Assignment(specs, values, {})

    def _replacements(self, verb: str, key: Any, value: Any) -> Assignment:
        """Check new values of keys, all of which the store must have."""
        registry = self._engine.layout.registry
        values: dict[Key, Array] = {}
        for name, given in single(verb, pairs(verb, key, value)):
            if name in values:
                raise UsageError(f"{verb}: key {name!r} is twice in the list; name it once")
            values[name] = check.value(verb, registry[name], given, self._engine.kernels)
        return Assignment([], [], values)
