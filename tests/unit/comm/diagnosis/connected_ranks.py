"""Call comparisons of several ranks that share no memory, connected inside a test."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ncclkv.comm.diagnosis.mismatch import CallComparison


class Transport:
    """A transport of one rank of a test, as far as `CallComparison` and `HangDetector` use it."""

    def __init__(self, rank: int, everyone: list[Transport], size: int) -> None:
        self.rank, self.size = rank, size
        self.inbox: list[tuple[int, bytes]] = []
        self.notified: list[int] = []
        self.departed: dict[int, str] = {}
        self._all = everyone
        everyone.append(self)

    def post(self, data: bytes, peers: Iterable[int]) -> None:
        for peer in peers:
            self.notified.append(peer)
            self._all[peer].inbox.append((self.rank, data))

    def left_ranks(self) -> dict[int, str]:
        return self.departed

    def has_ended(self, rank: int) -> bool:
        return False

    def pause(self, attempt: int) -> None:
        return None


def ranks(size: int) -> list[Any]:
    """Return the `CallComparison` of each of so many ranks that share no memory."""
    transports: list[Transport] = []
    made = [Transport(rank, transports, size) for rank in range(size)]
    return [CallComparison(each) for each in made]  # type: ignore[arg-type]


def _frame() -> FrameType:
    return sys._getframe()


FRAME = _frame()
"""Call site of all calls in these tests."""


def note(calls: CallComparison, *whats: int, keys: int = 0, text: str = "") -> None:
    """Record calls that are numbers."""
    log = calls.recorder.log
    for what in whats:
        words = text or f"call {what} at train.py:{what}"
        log.append(log.find(what, keys, FRAME) or log.intern(what, keys, words, FRAME), 0)
