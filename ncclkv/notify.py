"""Events that a rank sends to ``ncclkv run``: a failure and its reason, and the start of MPI.

The events are written to a pipe that the rank inherits from its supervisor, `ncclkv.cli.rank`.
Text on stderr would be ambiguous, because any program may write there.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ncclkv import env

PIPE = "NCCLKV_RUN_EVENTS"
"""Variable that holds descriptor and inode of the pipe to this rank's supervisor."""

FAILED = "failed"
"""Event: the rank ends the job; the reason follows."""

EXITS = "exits"
"""Event: the rank begins to exit, and may still wait for others; `exit_text` follows."""

MPI_BEGINS = "mpi-begins"
MPI_RUNS = "mpi-runs"
"""Events: the rank enters MPI_Init, which waits for all ranks; the rank has left MPI_Init."""

EVENTS = (FAILED, EXITS, MPI_BEGINS, MPI_RUNS)

PREFIX = "ncclkv-event "
"""Beginning of an event; other lines come from a program that writes to the inherited pipe."""

UNKNOWN = "?"
"""Exit code in `exit_text` that the rank cannot know before its end."""

_MAX_BYTES = 2048
"""Limit of an event; writes to a pipe are atomic up to 4096 bytes."""


def notify(event: str, text: str = "") -> None:
    """Send an event to the supervisor of this rank, if it has one.

    Parameters
    ----------
    event : str
        `FAILED`, `EXITS`, `MPI_BEGINS` or `MPI_RUNS`.
    text : str, optional
        Details; the first line is sent.
    """
    descriptor, _, inode = env.run_events().partition(":")
    if not (descriptor.isdecimal() and inode.isdecimal()):
        return
    first = text.splitlines()[0] if text else ""
    line = f"{PREFIX}{event} {first}".encode(errors="backslashreplace")[:_MAX_BYTES]
    with suppress(OSError):
        # A process that closed its inherited files may have opened another under that number.
        if os.fstat(int(descriptor)).st_ino == int(inode):
            os.write(int(descriptor), line + b"\n")


def exit_text(code: int | None, after: str) -> str:
    """Return the text of an `EXITS` event.

    Parameters
    ----------
    code : int or None
    after : str
        The failure that the program caught before; empty without one.

    Examples
    --------
    >>> exit_text(5, "RankLost: rank 1 left")
    '5 RankLost: rank 1 left'
    """
    return f"{UNKNOWN if code is None else code} {after}".rstrip()
