"""Factories of stores: one table from the names of stores to functions that make them.

A kind of store whose ranks are those of a `Communicator` needs only a row in `RANKS`, and is a
`KVStore`.  Another kind, such as one with servers, is a factory of its own in `FACTORIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ncclkv.comm.base import Communicator
from ncclkv.store.backends import RANKS, freed_without_store
from ncclkv.store.kvstore import KVStore
from ncclkv.store.options import Options
from ncclkv.store.plugin import BUILT_IN, KVStoreBase

Factory: TypeAlias = Callable[[str, Any, float | None, Options], KVStoreBase]
"""Function of the store's name, and of the arguments ``comm``, ``timeout`` and options."""

Ranks: TypeAlias = Callable[[str, Any, float | None], Communicator]


def over(ranks_of: Ranks) -> Factory:
    """Return the factory of stores over the ranks that a function finds."""

    def make(name: str, comm: Any, timeout: float | None, options: Options) -> KVStoreBase:
        ranks = ranks_of(name, comm, timeout)
        with freed_without_store(ranks):
            return KVStore(name, ranks, options)

    return make


FACTORIES: dict[str, Factory] = {name: over(ranks_of) for name, ranks_of in RANKS.items()}
"""Factories by the names of the built-in stores, the refused names too."""

BUILT_IN.update(FACTORIES)
