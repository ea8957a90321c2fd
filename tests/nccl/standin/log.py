"""Calls of one rank as lines of text, for a comparison with a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

HEADER = "recording stand-in, not NCCL"


class CallLog:
    """The calls that reached the stand-in, one a line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._events = 0

    def add(self, line: str) -> None:
        self.lines.append(line)

    def event(self) -> str:
        """Return the name of a new event."""
        self._events += 1
        return f"event {self._events}"

    @contextmanager
    def section(self) -> Iterator[list[str]]:
        """Collect the calls of a block, with events numbered from 1."""
        before, self.lines = self.lines, [HEADER]
        events, self._events = self._events, 0
        collected = self.lines
        try:
            yield collected
        finally:
            self.lines = before + collected[1:]
            self._events = max(events, self._events)
