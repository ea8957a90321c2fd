"""What pushes and pulls have in common: checked arrays go to the engine, or to the open group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv.arguments import check_length
from ncclkv.arrays.torch import tensors
from ncclkv.engine.batch import Pull, Push
from ncclkv.engine.bucket_state import Array
from ncclkv.engine.group import Group
from ncclkv.errors import OutOfMemory, UsageError
from ncclkv.store import check
from ncclkv.store.core import Core
from ncclkv.store.keys import is_list, key_list, pairs
from ncclkv.table.registry import Key, Registry


class Transfers(Core):
    """The ways into and out of the values of a store."""

    def _to_push(self, verb: str, key: Any, value: Any) -> tuple[Push, Sequence[Array]]:
        """A push of arrays that have been checked, and these in a row."""
        known = self._recent.find("push", key, value)
        if known is not None:
            return known
        with self._session.checks:
            values = self._values(verb, key, value)
        try:
            batch, row = self._engine.plan_push(values)
        except MemoryError as error:  # of the first push, which makes the buckets
            lack = _no_memory(verb, key, error)
            self._session.checks.failed(lack)  # nothing has been noted
            raise lack from error
        self._recent.keep("push", key, value, row, batch)
        return batch, row

    def _stage(
        self, verb: str, key: Any, push: Push, row: Sequence[Array], priority: int, step: Any
    ) -> None:
        """Bring a push that has been noted into its buckets."""
        try:
            self._engine.push(push, row, priority, step)
        except MemoryError as error:
            self._session.broken_off(verb, error)
            raise _no_memory(verb, key, error) from error

    def _values(self, verb: str, key: Any, value: Any) -> dict[Key, list[Array]]:
        """What to push of each key, which the updater can take."""
        registry, rule = self._engine.layout.registry, self._engine.rule
        values = check.values(verb, pairs(verb, key, value), registry, self._kernels)
        for name in values:
            rule.check(registry[name])
        return values

    def _to_pull(
        self, verb: str, key: Any, out: Any, *, local: bool = False
    ) -> tuple[Pull, Sequence[Array]]:
        """A pull into arrays that have been checked, and these in a row."""
        known = self._recent.find("pull", key, out)
        if known is not None:
            return known
        with self._session.checks:
            reads = self._outs(verb, key, out)
            if local or self._group is None:  # a group looks at its end where they lie
                self._engine.layout.check_outs(reads, flushed=not local)
        pull, row = self._planned("pull", key, out, reads)
        pull.tensors = tensors(out)
        return pull, row

    def _planned(
        self, verb: str, key: Any, out: Any, reads: list[tuple[Key, Array]]
    ) -> tuple[Pull, Sequence[Array]]:
        """A pull, which is kept if its arrays lie in no bucket."""
        pull, row = self._engine.plan_pull(reads)
        places = self._engine.layout
        if places.sealed and all(places.bucket_around(out) is None for out in row):
            self._recent.keep(verb, key, out, row, pull)
        return pull, row

    def _outs(
        self, verb: str, key: Any, out: Any, registry: Registry | None = None
    ) -> list[tuple[Key, Array]]:
        """Where to write what key, in order; the keys are those of `registry`, or of the store."""
        known = self._engine.layout.registry if registry is None else registry
        return check.outs(verb, pairs(verb, key, out), known, self._kernels)

    def _pull(self, pull: Pull, row: Sequence[Array]) -> None:
        """Flush what concerns some keys, and copy them out."""
        self._engine.settle(pull.states)
        if self._engine.untold:
            self._engine.tell()
        self._engine.read(pull, row)
        quiet = self._session.recording or self._engine.presence.uneven
        if self._verify is not None and not quiet:
            self._verify.pulled(pull, row)

    def _flush_group(self, group: Group) -> None:
        """Do what a group has noted: one push, then one pull."""
        known = self._recent.find("group", group.keys, group.outs)
        try:
            reads = [] if known is not None else group.reads()
            check.apart("group", reads)
            group.prepare(reads)
        except UsageError:
            group.cancel()
            raise
        self._operations.note("end of a group", group.pushed, group.keys)
        group.commit()
        pull, row = known or self._planned("group", group.keys, group.outs, reads)
        pull.tensors = group.tensors
        self._pull(pull, row)

    def _pull_new(self, key: Any, local: bool) -> Array | list[Array]:
        """Pull into new arrays."""
        if self._group is not None and not local:
            raise UsageError(
                "pull inside a group needs out: the value is there only at the group's end"
            )
        with self._session.checks:
            specs = [self._engine.layout.registry[name] for name in key_list(key)]
            arrays = [self._kernels.empty(spec.shape, spec.dtype) for spec in specs]
        reads = [(spec.key, array) for spec, array in zip(specs, arrays, strict=True)]
        pull, row = self._engine.plan_pull(reads)
        if local:
            self._engine.read(pull, row)
        else:
            self._operations.pull(pull)
            self._pull(pull, row)
        return arrays if is_list(key) else arrays[0]


def _no_memory(verb: str, key: Any, error: MemoryError) -> OutOfMemory:
    """Return the error to raise when memory runs out in a push."""
    keys = key_list(key)
    names = f"key {keys[0]!r}" if len(keys) == 1 else f"{len(keys)} keys, {keys[0]!r} the first"
    return OutOfMemory(f"{verb} of {names}: {str(error) or 'there is no memory left'}")


def whole_priority(verb: str, priority: Any) -> int:
    """Return a priority as an int: NumPy's unsigned ones cannot be negated."""
    check_length(f"{verb}: priority", priority)
    if isinstance(priority, bool) or not isinstance(priority, (int, np.integer)):
        raise UsageError(f"{verb}: priority={priority!r} is not an int; higher ones go first")
    return int(priority)


def flag(verb: str, name: str, value: Any) -> bool:
    """Return an argument that is true or false: an array has no truth."""
    if not isinstance(value, (bool, np.bool_)):
        check_length(f"{verb}: {name}", value)
        raise UsageError(f"{verb}: {name}={value!r} is not a bool")
    return bool(value)
