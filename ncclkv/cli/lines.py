"""The ranks' lines under each other, each behind the number of its rank."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

# A carriage return ends a line, as a progress bar's does, unless the end of a line follows.
_END = re.compile(rb"\r?\n|\r(?=[^\n])")

_IDLE_SECONDS = 0.2
"""After so long without the rest of its line a piece is written as it is: it may be a question."""

_LONGEST = 1 << 16
"""Bytes of a line that are kept back."""


class Lines:
    """One stream of all ranks.

    Parameters
    ----------
    write : callable
        ``write(data)`` takes bytes, to the last.
    note : callable
        ``note(rank, line)`` is called with each whole line, a str without its end.
    """

    def __init__(self, write: Callable[[bytes], None], note: Callable[[int, str], None]) -> None:
        self._write = write
        self._note = note
        self._begun: dict[int, _Begun] = {}
        self._unfinished: int | None = None

    def feed(self, rank: int, data: bytes) -> None:
        """Take what a rank has written."""
        begun = self._begun.setdefault(rank, _Begun())
        begun.waits += data
        start = 0
        for match in _END.finditer(begun.waits):
            line = begun.waits[start : match.end()]
            start = match.end()
            self._put(rank, line)
            whole = (begun.shown + line).rstrip(b"\r\n")
            begun.shown = b""
            self._note(rank, whole.decode(errors="replace"))
        begun.waits = begun.waits[start:]
        begun.since = time.monotonic()
        if len(begun.waits) > _LONGEST:
            self._show(rank, begun)

    def idle(self) -> None:
        """Write the pieces that have waited for the rest of their lines for long enough."""
        now = time.monotonic()
        for rank, begun in self._begun.items():
            if begun.waits and now - begun.since > _IDLE_SECONDS:
                self._show(rank, begun)

    def between(self, data: bytes) -> None:
        """Write lines that are of no rank's stream."""
        self._write((b"" if self._unfinished is None else b"\n") + data)
        self._unfinished = None

    def end(self) -> None:
        """Write all that waits; nothing more will come."""
        for rank, begun in self._begun.items():
            if begun.waits:
                self._show(rank, begun)
            if begun.shown:
                self._note(rank, begun.shown.decode(errors="replace"))
        if self._unfinished is not None:
            self._write(b"\n")
            self._unfinished = None

    def _show(self, rank: int, begun: _Begun) -> None:
        """Write a piece of a line."""
        self._put(rank, begun.waits)
        begun.shown = (begun.shown + begun.waits)[-_LONGEST:]
        begun.waits = b""

    def _put(self, rank: int, piece: bytes) -> None:
        """Write a line or a piece of one, on a line of its own."""
        before = b"" if self._unfinished in (None, rank) else b"\n"
        label = b"" if self._unfinished == rank else b"[%d] " % rank
        self._write(before + label + piece)
        self._unfinished = None if piece.endswith((b"\n", b"\r")) else rank


class _Begun:
    """A line that has begun: what was shown of it, and what waits for the rest since when."""

    def __init__(self) -> None:
        self.shown = b""
        self.waits = b""
        self.since = 0.0
