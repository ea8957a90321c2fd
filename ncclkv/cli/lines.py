"""Lines of all ranks in one stream, each after the index of its rank."""

from __future__ import annotations

import re
from collections.abc import Callable

from ncclkv import concurrency

# A newline ends a line.  So does a carriage return before any other byte, as in a progress bar.
_END = re.compile(rb"\r?\n|\r(?=[^\n])")

_IDLE_SECONDS = 0.2
"""Seconds after which an unfinished line is written as it is: it may be a prompt."""

_LONGEST = 1 << 16
"""Bytes of a line that are held back.  A longer line is written piece by piece, and the lines of
other ranks wait for its end."""

_QUEUE_BYTES = 1 << 20
"""Bytes of a rank's output that may wait for another rank's long line; then reading stops."""

_PATIENCE_SECONDS = 5.0
"""Seconds that other ranks' output waits for the end of a long line."""


class Lines:
    """One stream of all ranks.

    Parameters
    ----------
    write : callable
        ``write(data)`` writes all of the bytes.
    keep : callable
        ``keep(rank, line)`` gets each whole line, a str without its end.

    Attributes
    ----------
    to_pause : set of int
        Ranks whose output must not be read for now.
    """

    def __init__(self, write: Callable[[bytes], None], keep: Callable[[int, str], None]) -> None:
        self.to_pause: set[int] = set()
        self._write = write
        self._keep = keep
        self._partial: dict[int, _Partial] = {}
        self._unfinished: int | None = None
        self._long: int | None = None
        self._queued_since = 0.0

    def feed(self, rank: int, data: bytes) -> None:
        """Process a rank's output."""
        partial = self._partial.setdefault(rank, _Partial())
        partial.waiting += data
        partial.last_time = concurrency.monotonic()
        if self._long is None:
            self._write_lines(rank, partial)
        elif self._long == rank:
            self._continue_long_line(rank, partial)
        else:
            self._queued_since = self._queued_since or partial.last_time
            if len(partial.waiting) > _QUEUE_BYTES:
                self.to_pause.add(rank)

    def _continue_long_line(self, rank: int, partial: _Partial) -> None:
        """Write more of a rank's long line; at its end, write the lines that waited for it."""
        match = _END.search(partial.waiting)
        if match is None:
            self._write_lines(rank, partial)
            return
        rest = partial.waiting[match.end() :]
        partial.waiting = partial.waiting[: match.end()]
        self._write_lines(rank, partial)
        partial.waiting = rest
        self._release(rank)

    def _write_lines(self, rank: int, partial: _Partial) -> bool:
        """Write a rank's complete lines, then the start of a long line if there is one.

        Returns
        -------
        bool
            Whether a long line was started; the other ranks then wait for its end.
        """
        start = 0
        for match in _END.finditer(partial.waiting):
            line = partial.waiting[start : match.end()]
            start = match.end()
            self._write_piece(rank, line)
            whole = (partial.written + line).rstrip(b"\r\n")
            partial.written = b""
            self._keep(rank, whole.decode(errors="replace"))
        partial.waiting = partial.waiting[start:]
        if len(partial.waiting) > _LONGEST:
            self._write_unfinished(rank, partial)
            # The write may have paused the reading from the rank.
            partial.last_time = concurrency.monotonic()
            self._long = rank
            return True
        return False

    def _release(self, last: int) -> None:
        """Write the lines that waited for a long line, those of rank `last` last."""
        self._long = None
        self._queued_since = 0.0
        self.to_pause.clear()
        is_held = False
        for rank in sorted(self._partial, key=lambda each: each == last):
            partial = self._partial[rank]
            if not is_held:
                is_held = self._write_lines(rank, partial)
            elif partial.waiting:
                self._queued_since = concurrency.monotonic()

    def idle(self) -> None:
        """Write unfinished lines that have waited for 0.2 s."""
        now = concurrency.monotonic()
        if self._long is not None:
            paused = now - self._partial[self._long].last_time > _IDLE_SECONDS
            late = self._queued_since and now - self._queued_since > _PATIENCE_SECONDS
            if paused or late:
                self._release(self._long)
            return
        for rank, partial in self._partial.items():
            if partial.waiting and now - partial.last_time > _IDLE_SECONDS:
                self._write_unfinished(rank, partial)

    def between(self, data: bytes) -> None:
        """Write lines that belong to no rank."""
        self._write((b"" if self._unfinished is None else b"\n") + data)
        self._unfinished = None

    def end(self) -> None:
        """Write all lines that wait, at the end of the stream."""
        for rank in self._partial:  # a release ends early at another rank's long line
            self._release(rank)
        for rank, partial in self._partial.items():
            if partial.waiting:
                self._write_unfinished(rank, partial)
            if partial.written:
                self._keep(rank, partial.written.decode(errors="replace"))
        if self._unfinished is not None:
            self._write(b"\n")
            self._unfinished = None

    def _write_unfinished(self, rank: int, partial: _Partial) -> None:
        """Write the waiting part of an unfinished line."""
        self._write_piece(rank, partial.waiting)
        partial.written = (partial.written + partial.waiting)[-_LONGEST:]
        partial.waiting = b""

    def _write_piece(self, rank: int, piece: bytes) -> None:
        """Write a line, or a piece after the rank's last piece or on a line of its own."""
        before = b"" if self._unfinished in (None, rank) else b"\n"
        label = b"" if self._unfinished == rank else b"[%d] " % rank
        self._write(before + label + piece)
        self._unfinished = None if piece.endswith((b"\n", b"\r")) else rank


class _Partial:
    """An unfinished line: its written part, its waiting part, and the time of its last byte."""

    def __init__(self) -> None:
        self.written = b""
        self.waiting = b""
        self.last_time = 0.0
