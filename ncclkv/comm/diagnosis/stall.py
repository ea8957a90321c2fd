"""A line on stderr about a wait that lasts, long before its deadline."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

FIRST_SECONDS = 30.0
"""The first line comes after so long, or after a tenth of the timeout where that is less."""


def is_due(waited: float, limit: float, lines: int) -> bool:
    """Return whether a wait is to be reported: first, then each time it has lasted twice as long.

    Parameters
    ----------
    waited, limit : float
        Seconds that it has lasted, and may last.
    lines : int
        How many lines there were about it.
    """
    return waited >= min(FIRST_SECONDS, limit / 10) * (1 << lines)


def report(rank: int, size: int, what: str, waited: float, limit: float, known: str) -> None:
    """Write the line, in one piece.

    Parameters
    ----------
    rank, size : int
    what : str
        What waits, for whom.
    waited, limit : float
        Seconds.
    known : str
        What is known of the ranks that it waits for; may be empty.
    """
    line = (
        f"ncclkv: rank {rank} of {size} on {socket.gethostname()} (pid {os.getpid()}) has waited "
        f"{waited:.1f} s (timeout {limit:g} s): {what}{'; ' if known else ''}{known}\n"
    )
    with suppress(Exception):  # stderr may be closed, or gone
        sys.stderr.write(line)
        sys.stderr.flush()
