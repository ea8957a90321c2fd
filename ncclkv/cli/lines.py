"""Lines of all ranks in one stream, each after the number of its rank."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

# A carriage return ends a line, as a progress bar's does, unless the end of a line follows.
_END = re.compile(rb"\r?\n|\r(?=[^\n])")

_IDLE_SECONDS = 0.2
"""Seconds after which an unfinished line is written as it is: it may be a prompt."""

_LONGEST = 1 << 16
"""Bytes of a line that are held back.  A longer line is written as it arrives; the lines of other
ranks wait for its end."""

_CROWDED = 1 << 20
"""Bytes of a rank's output that may wait for another rank's long line; then reading stops."""

_PATIENCE_SECONDS = 5.0
"""Seconds that other ranks' output waits for the end of a long line."""


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
        self._holder: int | None = None
        self._crowded: set[int] = set()
        self._waiting_since = 0.0

    @property
    def crowded(self) -> set[int]:
        """Return the ranks whose output must not be read for now."""
        return self._crowded

    def feed(self, rank: int, data: bytes) -> None:
        """Process a rank's output."""
        begun = self._begun.setdefault(rank, _Begun())
        begun.waits += data
        begun.since = time.monotonic()
        if self._holder is None:
            self._advance(rank, begun)
        elif self._holder == rank:
            self._go_on(rank, begun)
        else:
            self._waiting_since = self._waiting_since or begun.since
            if len(begun.waits) > _CROWDED:
                self._crowded.add(rank)

    def _go_on(self, rank: int, begun: _Begun) -> None:
        """Write more of a long line; after its end the other ranks are first."""
        match = _END.search(begun.waits)
        if match is None:
            self._advance(rank, begun)
            return
        rest = begun.waits[match.end() :]
        begun.waits = begun.waits[: match.end()]
        self._advance(rank, begun)
        begun.waits = rest
        self._release(rank)

    def _advance(self, rank: int, begun: _Begun) -> bool:
        """Write the complete lines; return whether the rank now holds the stream."""
        start = 0
        for match in _END.finditer(begun.waits):
            line = begun.waits[start : match.end()]
            start = match.end()
            self._put(rank, line)
            whole = (begun.shown + line).rstrip(b"\r\n")
            begun.shown = b""
            self._note(rank, whole.decode(errors="replace"))
        begun.waits = begun.waits[start:]
        if len(begun.waits) > _LONGEST:
            self._show(rank, begun)
            begun.since = time.monotonic()  # the rank may have been paused, and so may this
            self._holder = rank
            return True
        return False

    def _release(self, last: int) -> None:
        """Write the lines that waited for a long line, up to the next long line."""
        self._holder = None
        self._waiting_since = 0.0
        self._crowded.clear()
        held = False
        for rank in sorted(self._begun, key=lambda each: each == last):
            begun = self._begun[rank]
            if not held:
                held = self._advance(rank, begun)
            elif begun.waits:
                self._waiting_since = time.monotonic()

    def idle(self) -> None:
        """Write unfinished lines that have waited for 0.2 s."""
        now = time.monotonic()
        if self._holder is not None:
            silent = now - self._begun[self._holder].since > _IDLE_SECONDS
            late = self._waiting_since and now - self._waiting_since > _PATIENCE_SECONDS
            if silent or late:
                self._release(self._holder)
            return
        for rank, begun in self._begun.items():
            if begun.waits and now - begun.since > _IDLE_SECONDS:
                self._show(rank, begun)

    def between(self, data: bytes) -> None:
        """Write lines that belong to no rank."""
        self._write((b"" if self._unfinished is None else b"\n") + data)
        self._unfinished = None

    def end(self) -> None:
        """Write all lines that wait, at the end of the stream."""
        for rank in self._begun:  # each may hold the stream once
            self._release(rank)
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
    """An unfinished line: its written part, its waiting part, and the time of its last byte."""

    def __init__(self) -> None:
        self.shown = b""
        self.waits = b""
        self.since = 0.0
