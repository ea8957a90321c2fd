"""End the whole job when one rank ends in an exception.

MPI by itself leaves the other ranks waiting for ever: the one that raised sits in ``MPI_Finalize``
while they sit in a collective, and the launcher sees no dead process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from ncclkv import env
from ncclkv.errors import RankDied, RankLost

_FAILURE = 1

# Seconds for the launcher to read what a rank has written: it drops the rest when one aborts.
_LAST_WORDS = 0.2

# Seconds for a rank that others have lost to say why, and to end the job itself.
_GRACE = 0.5


def install() -> None:
    """Chain the hooks, where ncclkv may end the job."""
    if not may_end_the_job():
        return
    owner = os.getpid()
    chained, chained_thread = sys.excepthook, threading.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() != owner:  # a forked child's end is its parent's affair
            chained(kind, error, trace)
            _end_child()
            return
        if issubclass(kind, RankLost) and not issubclass(kind, RankDied):
            time.sleep(_GRACE)
        _announce(kind, error)
        chained(kind, error, trace)
        _end_job()

    def thread_excepthook(args: threading.ExceptHookArgs) -> None:
        if os.getpid() != owner or issubclass(args.exc_type, SystemExit):
            chained_thread(args)
            return
        _announce(args.exc_type, args.exc_value)
        chained_thread(args)
        _end_job()

    sys.excepthook = excepthook
    threading.excepthook = thread_excepthook


def may_end_the_job() -> bool:
    """Whether a failure of this process may end the job of all ranks.

    Under a launcher of several ranks, and nowhere else.  Not in an interactive session nor under
    pytest, which report exceptions and go on, and not when ``NCCLKV_ABORT=0``.
    """
    several = (env.launched_size() or 1) > 1 or env.launched_without_size()
    interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    asked = not interactive and "pytest" not in sys.modules and env.abort_on_exception()
    return several and asked


def announcement(reason: str) -> str:
    """What is said of this rank before it ends the job, in one line."""
    rank, size = env.launched_rank(), env.launched_size()
    who = "a rank" if rank is None else f"rank {rank}" + ("" if size is None else f" of {size}")
    return (
        f"ncclkv: {who} on {socket.gethostname()} (pid {os.getpid()}) failed, "
        f"ending the job: {reason}"
    )


def _announce(kind: type[BaseException], error: BaseException | None) -> None:
    """Say who failed and how, ahead of the traceback."""
    lines = str(error).splitlines()
    reason = kind.__name__ + (f": {lines[0]}" if lines else "")
    _flush()
    # In one write, so that two ranks' lines cannot run into each other.
    sys.stderr.write(f"{announcement(reason)}\n")
    sys.stderr.flush()


def _end_child() -> None:
    """End a forked child at once: the interpreter's own end would wait for MPI's other ranks."""
    if _running_mpi() is not None:
        _flush()
        os._exit(_FAILURE)


def _end_job() -> None:
    """Take all ranks down; does not return."""
    _flush()
    mpi = _running_mpi()
    time.sleep(_LAST_WORDS)
    if mpi is not None:
        mpi.COMM_WORLD.Abort(_FAILURE)
        os._exit(_FAILURE)  # some MPIs return from Abort, to end the process a moment later
    # Before MPI_Init no launcher counts an exit, whatever its code, as the job's failure; every
    # one of them counts a death by signal.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _running_mpi() -> Any:
    """The module mpi4py.MPI, between MPI's start and its end; else None."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    running = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    return mpi if running else None


def _flush() -> None:
    """Write out what was printed, unless nobody reads it any more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
