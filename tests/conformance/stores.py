"""Stores for the calling rank, closed at the end of its test."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import ncclkv
from tests.harness.context import context_of


class Stores:
    """Opens stores of one name and placement; as a context it closes them, the last one first."""

    def __init__(self, name: str, update_on: str) -> None:
        self.name = name
        self.update_on = update_on
        self._stack = ExitStack()

    def __call__(self, **options: Any) -> Any:
        """Open a new store; `options` override this opener's placement."""
        kv = self.open(**{"update_on": self.update_on, **options})
        return self._stack.enter_context(kv)

    def open(self, **options: Any) -> Any:
        """Open a new store that this opener does not close."""
        return ncclkv.create(self.name, **options)

    def updates_here(self, kv: Any, key: Any) -> bool:
        """Return whether a function given to `set_updater` is called for a key on this rank."""
        return self.update_on == "every_rank" or kv.rank == self.owner(kv, key)

    def owner(self, kv: Any, key: Any) -> int:
        """Return the rank that calls the function for a key, if one rank does."""
        slot = context_of(kv).engine.layout[key]
        return slot.state.to.owner(slot.entry.lo) if self.update_on == "sharded" else 0

    def __enter__(self) -> Stores:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
