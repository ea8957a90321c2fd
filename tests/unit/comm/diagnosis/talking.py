"""Ranks of a test that share no memory, and what they tell each other of their calls."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ncclkv.comm.diagnosis.mismatch import CallComparison


class Post:
    """The transport of one rank among several in this test, as far as `CallComparison` uses it."""

    def __init__(self, rank: int, all_of_them: list[Post], size: int) -> None:
        self.rank, self.size = rank, size
        self.inbox: list[tuple[int, bytes]] = []
        self.told: list[int] = []
        self._all = all_of_them
        all_of_them.append(self)

    def post(self, data: bytes, peers: Iterable[int]) -> None:
        for peer in peers:
            self.told.append(peer)
            self._all[peer].inbox.append((self.rank, data))

    def left_ranks(self) -> dict[int, str]:
        return {}

    def pause(self, attempt: int) -> None:
        return None


def ranks(size: int) -> list[Any]:
    """`CallComparison` of so many ranks that share no memory."""
    posts: list[Post] = []
    return [CallComparison(Post(rank, posts, size)) for rank in range(size)]  # type: ignore[arg-type]


def _frame() -> FrameType:
    return sys._getframe()


FRAME = _frame()
"""Where all calls of these tests come from."""


def note(calls: CallComparison, *whats: int, keys: int = 0, text: str = "") -> None:
    """Note calls that are numbers."""
    log = calls.recorder.log
    for what in whats:
        words = text or f"call {what} at train.py:{what}"
        if log.append(what, keys, 0, FRAME) is None:
            log.intern(what, keys, words, FRAME)
            log.append(what, keys, 0, FRAME)
