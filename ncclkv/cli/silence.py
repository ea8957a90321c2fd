"""Silence: ranks whose end is not reported, because their supervisor is stopped.

Only the processes of this machine are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ncclkv.cli.outcome import Rank
from ncclkv.system.processes import stat_of

_LOOK_SECONDS = 0.5


class Silence:
    """Looks for ranks that ended more than `limit` seconds ago under a stopped supervisor."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[int, float] = {}
        self._due = 0.0

    def look(self, ranks: Iterable[Rank], seconds: float) -> None:
        """Record the failure of such ranks, at `seconds` after the start."""
        if seconds < self._due:
            return
        self._due = seconds + _LOOK_SECONDS
        here = os.uname().nodename
        for rank in ranks:
            stopped = _stopped_parent(rank.pid) if rank.host == here and not rank.over else 0
            if not stopped:
                self._since.pop(rank.index, None)
            elif seconds - self._since.setdefault(rank.index, seconds) > self._limit:
                rank.failure = rank.failure or (_describe(stopped, self._limit), seconds)


def _stopped_parent(pid: int) -> int:
    """Return the parent of a process that has ended, if the parent is stopped; else 0."""
    state, parent, *_ = [*stat_of(pid), "", ""]
    return int(parent) if state == "Z" and stat_of(int(parent))[:1] == ["T"] else 0


def _describe(supervisor: int, seconds: float) -> str:
    return (
        f"it ended, and its supervisor (pid {supervisor}) has been stopped for {seconds:g} s and "
        f"cannot report how"
    )
