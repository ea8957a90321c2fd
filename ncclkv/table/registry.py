"""The keys of a store, in the order in which they were initialised."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ncclkv.errors import KeyAlreadyInitialized, KeyNotInitialized, KeyTypeMismatch
from ncclkv.typing import Key as Key

DENSE = "dense"
"""The storage of a key in a range of a flat bucket."""

_KIND = {int: ("an int", "ints"), str: ("a str", "strs")}


@dataclass(frozen=True)
class KeySpec:
    """Key, shape, dtype and op, equal on all ranks.

    Attributes
    ----------
    key : int or str
        As the user gave it.
    index : int
        Position in the order of initialisation, from 0.
    shape : tuple of int
    dtype : numpy.dtype
    op : str
        Reduction of pushes over ranks: sum, avg, max or min.
    storage : str
        The form in which its value is kept, by the name in `ncclkv.engine.storage_table`.
    """

    key: Key
    index: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    op: str = "sum"
    storage: str = DENSE

    @property
    def size(self) -> int:
        """Count of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its value."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        storage = "" if self.storage == DENSE else f" {self.storage}"
        return f"key {self.key!r}: {self.dtype} {self.shape} {self.op}{storage}"


class Registry:
    """Keys by name and in order; all of one kind, int or str.

    A call that raises leaves the registry unchanged.
    """

    def __init__(self) -> None:
        self._specs: MutableMapping[Key, KeySpec] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._specs

    def __iter__(self) -> Iterator[KeySpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def __getitem__(self, key: Key) -> KeySpec:
        spec = self._specs.get(key)
        if spec is not None:
            return spec
        self.check_kind([key])
        import difflib  # slow to import, and seldom needed

        close = difflib.get_close_matches(str(key), [str(each) for each in self._specs], 1)
        hint = f"; did you mean {close[0]!r}?" if isinstance(key, str) and close else ""
        raise KeyNotInitialized(
            f"key {key!r} has no value yet: call init({key!r}, value){hint}", key=key
        )

    def check_kind(self, keys: Iterable[Key]) -> None:
        """Refuse keys of another kind than the store's."""
        first = next(iter(self._specs), None)
        for key in keys:
            if first is not None and type(key) is not type(first):
                raise KeyTypeMismatch(
                    f"key {key!r} is {_KIND[type(key)][0]}, but the keys of this store are "
                    f"{_KIND[type(first)][1]}, such as {first!r}; use one kind",
                    key=key,
                )

    def check_new(self, keys: Iterable[Key]) -> None:
        """Refuse keys that are registered already, or twice in `keys`."""
        keys = list(keys)
        self.check_kind(keys)
        seen: set[Key] = set()
        for key in keys:
            if key in self._specs:
                raise KeyAlreadyInitialized(
                    f"key {key!r} has a value already; call reset({key!r}, value) to replace it",
                    key=key,
                )
            if key in seen:
                raise KeyAlreadyInitialized(
                    f"key {key!r} is twice in the list; name it once", key=key
                )
            seen.add(key)

    def with_keys(self, specs: Iterable[KeySpec]) -> Registry:
        """Return a registry of these and more keys, which refers to this registry."""
        more = Registry()
        more._specs = ChainMap({spec.key: spec for spec in specs}, self._specs)
        return more

    def add(self, specs: Iterable[KeySpec]) -> None:
        """Append new keys."""
        for spec in specs:
            self._specs[spec.key] = spec

    def update_order(self, keys: Iterable[Key]) -> list[Key]:
        """Return `keys` in the order of updates: ints ascending, strings as initialised.

        The order is MXNet's, which gives strings indices as initialised, and sorts by these.
        """
        return sorted(keys, key=lambda key: key if isinstance(key, int) else self[key].index)
