"""`Overlay`: items of a mapping that are set for the duration of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager


class Overlay:
    """Setter of items of a mapping within blocks; blocks of several threads may overlap.

    Parameters
    ----------
    target : mutable mapping of str to str
    """

    def __init__(self, target: MutableMapping[str, str]) -> None:
        self._target = target
        self._blocks: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def block(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Set items within a block; items that exist already keep their values.

        The last block that set an item removes it.
        """
        with self._lock:
            added = [name for name in settings if name in self._blocks or name not in self._target]
            for name in added:
                self._blocks[name] = self._blocks.get(name, 0) + 1
                self._target[name] = settings[name]
        try:
            yield
        finally:
            with self._lock:
                for name in added:
                    self._blocks[name] -= 1
                    if not self._blocks[name]:
                        del self._blocks[name]
                        self._target.pop(name, None)
