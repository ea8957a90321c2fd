"""Stall lines: a line on stderr about a long wait, before its deadline."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

FIRST_SECONDS = 30.0
"""The first line appears after 30 seconds, or after a tenth of a shorter timeout."""


def is_due(waited: float, limit: float, lines: int) -> bool:
    """Return whether a wait is due for a line: the first, or another after twice the time.

    Parameters
    ----------
    waited, limit : float
        Seconds that the wait has lasted, and may last.
    lines : int
        As `lines_after` returned at the last line about this wait; 0 before the first.
    """
    return waited >= min(FIRST_SECONDS, limit / 10) * (1 << lines)


def lines_after(waited: float, limit: float) -> int:
    """Return the count of lines that were due in a wait which is due for a line.

    A rank that was off its processor has missed lines: a burst of them would only repeat the last.
    """
    return int(waited / min(FIRST_SECONDS, limit / 10)).bit_length()


def write_line(
    rank: int, size: int, description: str, waited: float, limit: float, details: str
) -> None:
    """Write one line about a wait in one piece.

    The description has the collective and the awaited ranks; the details, which may be empty, have
    their last calls and waits.
    """
    line = (
        f"ncclkv: rank {rank} of {size} on {socket.gethostname()} (pid {os.getpid()}) has waited "
        f"{waited:.1f} s (timeout {limit:g} s): {description}{'; ' if details else ''}{details}\n"
    )
    with suppress(Exception):  # stderr may be closed, or gone
        sys.stderr.write(line)
        sys.stderr.flush()
