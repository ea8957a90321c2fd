"""The host communicator that the communicator under test is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ncclkv.comm.base import Communicator


class Peers:
    """A host communicator that makes, for each communicator split off it, one for the stand-in.

    The stand-in moves data among the ranks of every communicator that is created, and these need
    not all be there when it is: so its own is made where all must be.
    """

    def __init__(
        self, host: Communicator, offer: Callable[[Communicator], None], limit: float
    ) -> None:
        self._host = host
        self._offer = offer
        self._limit = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def split(self, color: int | None, key: int = 0) -> Any:
        own = self._host.split(color, key)
        child = self._host.split(color, key)
        if own is None or child is None:
            return None
        self._offer(own)
        return Peers(child, self._offer, self._limit)

    def duplicate(self, timeout: float | None = None) -> Any:
        child = self._host.duplicate(timeout)  # the first, for it heeds the deadline
        self._offer(self._host.duplicate(self._limit))
        return Peers(child, self._offer, self._limit)
