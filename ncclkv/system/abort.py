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
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

from ncclkv import env, notify, tracebacks
from ncclkv.errors import KVStoreError, RankDied, RankLost

FAILURE = 1
"""The exit code of a rank that ends the job."""

# Seconds for the launcher to read what a rank has written: it drops the rest when one aborts.
_LAST_WORDS = 0.2

# Seconds for a rank that others have lost to say why, and to end the job itself.
_GRACE = 0.5

_given: list[object] = []
"""The argument of the main thread's last `sys.exit`, if there was one."""


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
        plain = chained is sys.__excepthook__
        _show(error, None if plain else lambda: chained(kind, error, error.__traceback__))
        end_job()

    def thread_excepthook(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        if os.getpid() != owner or error is None or isinstance(error, SystemExit):
            chained_thread(args)
            return
        plain = chained_thread is threading.__excepthook__
        name = "" if args.thread is None else args.thread.name
        _show(error, None if plain else lambda: chained_thread(args), f"in thread {name}: ")
        end_job()

    sys.excepthook = excepthook
    threading.excepthook = thread_excepthook
    _note_exit_codes()


def _note_exit_codes() -> None:
    """Remember what `sys.exit` is given: at the end Python does not tell the exit code."""
    chained = sys.exit

    def exit(status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            _given[:] = [status]
        chained(status)

    sys.exit = exit


def exit_code() -> int | None:
    """The exit code of this process, at its end; None where Python does not show it."""
    if getattr(sys, "last_value", None) is not None:  # an uncaught exception
        return FAILURE
    if not _given:
        return None
    status = _given[0]
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else FAILURE


def bad_end() -> str:
    """Why this process ends badly, as far as Python shows it; empty when it does not."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        return reason_of(error)
    code = exit_code()
    return f"exit code {code}" if code else ""


def may_end_the_job() -> bool:
    """Whether a failure of this process may end the job of all ranks.

    Under a launcher of several ranks, and nowhere else.  Not in an interactive session nor under
    pytest, which report exceptions and go on, and not when ``NCCLKV_ABORT=0``.
    """
    several = (env.launched_size() or 1) > 1 or env.launched_without_size()
    interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    asked = not interactive and "pytest" not in sys.modules and env.abort_on_exception()
    return several and asked


def here() -> str:
    """This rank, its host and process, as every line about it begins."""
    rank, size = env.launched_rank(), env.launched_size()
    who = "a rank" if rank is None else f"rank {rank}" + ("" if size is None else f" of {size}")
    return f"ncclkv: {who} on {socket.gethostname()} (pid {os.getpid()})"


def announcement(reason: str) -> str:
    """Return the line that announces the failure of this rank before it ends the job."""
    return f"{here()} failed, ending the job: {reason}"


def reason_of(error: BaseException) -> str:
    """An error in one line: its type, and the first line of its text."""
    lines = str(error).splitlines()
    return type(error).__name__ + (f": {lines[0]}" if lines else "")


def follows(reason: str) -> bool:
    """Return whether a reason, as `reason_of` words it, is that another rank has failed."""
    return reason.startswith((RankLost.__name__, RankDied.__name__))


def announce(reason: str, more: str = "") -> None:
    """Write why this rank fails, and the text that is to follow.

    In one write, so that two ranks' lines cannot run into each other.
    """
    _flush()
    notify.notify(notify.FAILED, reason)
    with suppress(Exception):
        sys.stderr.write(f"{announcement(reason)}\n{more}")
        sys.stderr.flush()


def _show(error: BaseException, chained: Callable[[], object] | None, where: str = "") -> None:
    """Write who failed and how: first in a line, and last in the line that ends the traceback.

    A rank that only follows another's failure lets that one write first, and writes a line.

    Parameters
    ----------
    error : BaseException
    chained : callable or None
        Shows the traceback; None when it is to be written with the line.
    where : str
        The thread, ahead of the traceback.
    """
    reason = reason_of(error)
    if tracebacks.follows(error):
        if not isinstance(error, RankDied):
            time.sleep(_GRACE)
        if not env.full_traceback():
            announce(reason)
            return
    if chained is None:
        text = f"Exception {where}\n" * bool(where) + tracebacks.text(error)
        again = isinstance(error, KVStoreError) and reason not in text.splitlines()[-1]
        announce(reason, f"{text}{announcement(reason)}\n" if again else text)
    else:
        tracebacks.trim(error)
        announce(reason)
        chained()


def _end_child() -> None:
    """End a forked child at once: the interpreter's own end would wait for MPI's other ranks."""
    if running_mpi() is not None:
        _flush()
        os._exit(FAILURE)


def give_time_to_read() -> None:
    """Wait until the launcher has read what this rank wrote."""
    _flush()
    time.sleep(_LAST_WORDS)


def end_job() -> NoReturn:
    """Take all ranks down."""
    mpi = running_mpi()
    give_time_to_read()
    if mpi is not None:
        mpi.COMM_WORLD.Abort(FAILURE)
        os._exit(FAILURE)  # some MPIs return from Abort, to end the process a moment later
    # Before MPI_Init no launcher counts an exit, whatever its code, as the job's failure; every
    # one of them counts a death by signal.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(FAILURE)


def running_mpi() -> Any:
    """The module mpi4py.MPI, between MPI's start and its end; else None."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    running = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    return mpi if running else None


def _flush() -> None:
    """Write out what was printed, unless nobody reads it any more."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
