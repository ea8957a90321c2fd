"""Events that a rank sends to ``ncclkv run``: a failure and its reason, the start of MPI, a page.

The events are written to a pipe that the rank inherits from `ncclkv.cli.supervisor`.  Text on
stderr would be ambiguous, because any program may write there.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ncclkv import env

PIPE = "NCCLKV_RUN_EVENTS"
"""Variable that holds descriptor and inode of the pipe to this rank's supervisor."""

FAILED = "failed"
"""Event: the rank ends the job; the reason follows."""

BROKEN = "broken"
"""Event: a store has raised an error, which follows; without a text, the rank has overcome it."""

EXITS = "exits"
"""Event: the rank begins to exit, and may still wait for others; its code or `UNKNOWN` follows."""

MPI_BEGINS = "mpi-begins"
MPI_RUNS = "mpi-runs"
"""Events: the rank enters MPI_Init, which waits for all ranks; the rank has left MPI_Init."""

PAGE = "page"
"""Event: a store has a page of its last calls; process, address and length in bytes follow."""

EVENTS = (FAILED, BROKEN, EXITS, MPI_BEGINS, MPI_RUNS, PAGE)

PREFIX = "ncclkv-event "
"""Beginning of an event; other lines come from a program that writes to the inherited pipe."""

UNKNOWN = "?"
"""Exit code that the rank cannot know before its end."""

_MAX_BYTES = 2048
"""Limit of an event; writes to a pipe are atomic up to 4096 bytes."""


def notify(event: str, text: str = "") -> None:
    """Send an event to the supervisor of this rank, if it has one.

    Parameters
    ----------
    event : str
        One of `EVENTS`.
    text : str, optional
        Details; the first line is sent.
    """
    descriptor, _, inode = env.run_events().partition(":")
    if not (descriptor.isdecimal() and inode.isdecimal()):
        return
    first = text.splitlines()[0] if text else ""
    line = f"{PREFIX}{event} {first}".encode(errors="backslashreplace")[:_MAX_BYTES]
    with suppress(OSError):
        # A process that closed its inherited files may have opened another under that descriptor.
        if os.fstat(int(descriptor)).st_ino == int(inode):
            # On a line of its own, whatever the program has written to the inherited pipe.
            os.write(int(descriptor), b"\n" + line + b"\n")
