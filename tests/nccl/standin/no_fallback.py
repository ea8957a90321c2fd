"""A transport without messages."""

from __future__ import annotations

from typing import Any

from ncclkv import concurrency


class NoFallback:
    """The calls that a `ProgressEngine` makes of a transport, for a device without peers."""

    size = 0
    spin_limit = 0

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.inbox: list[Any] = []

    def post(self, data: bytes, peers: Any) -> None:
        """Send nothing."""

    def pause(self, attempt: int) -> None:
        concurrency.sleep(0 if attempt < 20 else 2e-4)

    def left_ranks(self) -> dict[int, Any]:
        return {}
