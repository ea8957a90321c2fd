"""What pushes and pulls have in common: checked arrays go to the engine, or to the open group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ncclkv.engine.state import Array
from ncclkv.errors import UsageError
from ncclkv.store import check
from ncclkv.store.core import Core
from ncclkv.store.keys import Pairs, is_list, key_list, pairs
from ncclkv.table.registry import Key, Registry


class Transfers(Core):
    """The ways into and out of the values of a store."""

    def _values(self, verb: str, found: Pairs) -> dict[Key, list[Array]]:
        """What to push of each key, which the updater can take."""
        registry, rule = self._engine.registry, self._engine.rule
        values = check.values(verb, found, registry, self._kernels)
        for key in values:
            rule.check(registry[key])
        return values

    def _outs(
        self, verb: str, key: Any, out: Any, registry: Registry | None = None
    ) -> list[tuple[Key, Array]]:
        """Where to write what key, in order; the keys are those of `registry`, or of the store."""
        known = self._engine.registry if registry is None else registry
        return check.outs(verb, pairs(verb, key, out), known, self._kernels)

    def _push(self, values: Mapping[Key, Sequence[Array]], priority: int) -> Exception | None:
        """Push arrays that have been checked; return what the updater raised."""
        if self._group is not None:
            self._group.push(values, priority)
            return None
        return self._engine.push(values, priority)

    def _check_outs(self, reads: Sequence[tuple[Key, Array]]) -> None:
        """Refuse to write over gradients; of a group, its end does that."""
        if self._group is None:
            self._engine.check_outs(reads, flushed=True)

    def _pull(self, reads: Sequence[tuple[Key, Array]]) -> None:
        """Flush what concerns some keys, and copy them out."""
        if self._group is not None:
            self._group.pull(reads)
            return
        self._engine.settle([key for key, _ in reads])
        self._engine.read(reads)

    def _pull_new(self, key: Any, local: bool) -> Any:
        """Pull into new arrays."""
        if self._group is not None and not local:
            raise UsageError(
                "pull inside a group needs out: the value is there only at the group's end"
            )
        specs = [self._engine.registry[name] for name in key_list(key)]
        reads = [(spec.key, self._kernels.empty(spec.shape, spec.dtype)) for spec in specs]
        if local:
            self._engine.read(reads)
        else:
            self._pull(reads)
        arrays = [array for _, array in reads]
        return arrays if is_list(key) else arrays[0]


def whole_priority(verb: str, priority: Any) -> int:
    """A priority as an int: NumPy's unsigned ones cannot be negated."""
    if isinstance(priority, bool) or not isinstance(priority, (int, np.integer)):
        raise UsageError(f"{verb}: priority={priority!r} is not an int; higher ones go first")
    return int(priority)


def raise_late(error: Exception | None) -> None:
    """Raise what an updater raised, after the verb's end: it says nothing of this store's state."""
    if error is not None:
        raise error
