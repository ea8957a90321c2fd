"""`Bases`: what powersgd keeps of each key, equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterable

from ncclkv.compress.basis import Basis
from ncclkv.kernels.base import Kernels
from ncclkv.table.registry import Key, KeySpec


class Bases:
    """The bases of a store: they belong to keys, so they stay when keys move to other buckets.

    Parameters
    ----------
    kernels : Kernels
        Allocates them.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._of_keys: dict[Key, Basis] = {}

    def of(self, spec: KeySpec) -> Basis:
        """Return the basis of a key, which is always the same object until it is dropped."""
        if spec.key not in self._of_keys:
            self._of_keys[spec.key] = Basis(spec.key, spec.shape, self._kernels)
        return self._of_keys[spec.key]

    def find(self, key: Key) -> Basis | None:
        """Return the basis of a key, if it has one."""
        return self._of_keys.get(key)

    def reset(self, key: Key) -> None:
        """Let the basis of a key begin again."""
        if key in self._of_keys:
            self._of_keys[key].reset()

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget the bases of keys that are not compressed by powersgd any more."""
        for key in keys:
            self._of_keys.pop(key, None)
