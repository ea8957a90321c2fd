"""The calls of one rank as lines of text, to be compared with a kept file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

HEADER = "recording stand-in, not NCCL"


class CallLog:
    """Every call that reached the stand-in, one a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._events = 0

    def add(self, line: str) -> None:
        self.lines.append(line)

    def event(self) -> str:
        """The name of a new event."""
        self._events += 1
        return f"event {self._events}"

    @contextmanager
    def section(self) -> Iterator[list[str]]:
        """Collect what is called in a block, with its events numbered from 1."""
        before, self.lines = self.lines, [HEADER]
        events, self._events = self._events, 0
        collected = self.lines
        try:
            yield collected
        finally:
            self.lines = before + collected[1:]
            self._events = max(events, self._events)
