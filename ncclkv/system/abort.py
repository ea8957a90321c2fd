"""End of the whole job when one rank ends in an exception.

MPI by itself leaves all ranks waiting for ever: the failed rank in ``MPI_Finalize``, the others in
a collective.  The launcher sees no dead process.

Under a launcher of several ranks, hooks are put in front of ``sys.excepthook`` and
``threading.excepthook``.  The hooks name the rank, print the traceback, and call ``MPI_Abort``.
Before MPI's start the hooks end the process by a signal, which every launcher notices.
``sys.exit`` is wrapped too, because exit handlers cannot read the exit code.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

from ncclkv import concurrency, env, notify, tracebacks
from ncclkv.errors import KVStoreError, LaunchError, RankDied, RankLost

FAILURE = 1
"""The exit code of a rank that ends the job."""

# Seconds for the launcher to read a rank's output: the launcher drops unread output on an abort.
_READ_SECONDS = 0.2

# Seconds for a lost rank to write its own error first, and to end the job itself.
_GRACE_SECONDS = 0.5

_FIRST_SECONDS = 5.0
"""Seconds for rank 0 to write an error of every rank; its end makes mpirun end the others."""

_FOLLOWS = re.compile(rf"(?:^|, after )(?:{RankLost.__name__}|{RankDied.__name__})\b")

_exit_arguments: list[object] = []
"""The argument of the main thread's last `sys.exit`; empty before a call."""


def install() -> None:
    """Install the exception hooks in front of the present ones, where ncclkv may end the job."""
    if not may_end_the_job():
        return
    owner = os.getpid()
    chained = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() != owner:  # a forked child must not end its parent's job
            chained(kind, error, trace)
            _end_child()
            return
        plain = chained is sys.__excepthook__
        _show(error, None if plain else lambda: chained(kind, error, trace))
        end_job()

    def thread_excepthook(
        args: concurrency.ExceptHookArgs, former: concurrency.ExceptHook, plain: bool
    ) -> None:
        error = args.exc_value
        if os.getpid() != owner or error is None or isinstance(error, SystemExit):
            former(args)
            return
        name = "" if args.thread is None else args.thread.name
        _show(error, None if plain else lambda: former(args), f"in thread {name}: ")
        end_job()

    sys.excepthook = excepthook
    concurrency.chain_excepthook(thread_excepthook)
    _note_exit_codes()


def _note_exit_codes() -> None:
    """Keep the argument of `sys.exit`: exit handlers cannot read the exit code from Python."""
    chained = sys.exit

    def exit(status: Any = None, /) -> NoReturn:
        if concurrency.current_thread() is concurrency.main_thread():
            _exit_arguments[:] = [status]
        chained(status)

    sys.exit = exit


def exit_code() -> int | None:
    """Return the exit code of this process, for exit handlers; None where it is unknown."""
    if getattr(sys, "last_value", None) is not None:  # an uncaught exception
        return FAILURE
    if not _exit_arguments:
        return None
    status = _exit_arguments[0]
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else FAILURE


def bad_end() -> str:
    """Return the reason of this process's failed exit, for exit handlers; empty without one."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        return reason_of(error)
    code = exit_code()
    return f"exit code {code}" if code else ""


def may_end_the_job() -> bool:
    """Return whether a failure of this process may end the job of all ranks.

    True under a launcher of several ranks only.  False in an interactive session and under pytest,
    which report exceptions and go on, and with ``NCCLKV_ABORT=0``.
    """
    several = (env.launched_size() or 1) > 1 or env.launched_without_size()
    interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    allowed = not interactive and "pytest" not in sys.modules and env.abort_on_exception()
    return several and allowed


def here() -> str:
    """Return this rank, its host and process, the beginning of every line about the rank."""
    rank, size = env.launched_rank(), env.launched_size()
    who = "a rank" if rank is None else f"rank {rank}" + ("" if size is None else f" of {size}")
    return f"ncclkv: {who} on {os.uname().nodename} (pid {os.getpid()})"


def announcement(reason: str) -> str:
    """Return the line that announces the failure of this rank before it ends the job."""
    return f"{here()} failed, ending the job: {reason}"


def reason_of(error: BaseException) -> str:
    """Describe an error in one line: its type, and the first line of its text.

    If it was raised because of the failure of another rank, that error stands at the end.
    """
    lines = str(error).splitlines()
    reason = type(error).__name__ + (f": {lines[0]}" if lines else "")
    before = None if isinstance(error, (RankLost, RankDied)) else _lost_before(error)
    return f"{reason}, after {reason_of(before)}" if before is not None else reason


def _lost_before(error: BaseException) -> BaseException | None:
    """Return the failure of another rank that a traceback of `error` begins with, or None."""
    seen = {id(error)}
    before: BaseException | None = error
    while before is not None and not isinstance(before, (RankLost, RankDied)):
        context = None if before.__suppress_context__ else before.__context__
        before = before.__cause__ or context
        if id(before) in seen:
            return None
        seen.add(id(before))
    return before


def follows(reason: str) -> bool:
    """Return whether a reason of `reason_of`, or a farewell, is the failure of another rank."""
    return _FOLLOWS.search(reason) is not None


def announce(reason: str, more: str = "") -> None:
    """Write the reason of this rank's failure, and then the text `more`.

    A single write keeps the lines of two ranks apart.
    """
    _flush()
    notify.notify(notify.FAILED, reason)
    with suppress(Exception):
        sys.stderr.write(f"{announcement(reason)}\n{more}")
        sys.stderr.flush()


def _show(error: BaseException, chained: Callable[[], object] | None, where: str = "") -> None:
    """Write the failed rank and its error around the traceback; may wait for other output.

    A rank that only follows another's failure waits for that rank's output, and writes one line.
    An error that every rank raises is one line of rank 0.  Another rank writes the line, too, if no
    launcher has ended it, and if its parent may have started this program on one rank alone.

    Parameters
    ----------
    error : BaseException
    chained : callable or None
        Shows the traceback; None when this function is to write it.
    where : str
        The thread, for the line before the traceback.
    """
    reason = reason_of(error)
    if isinstance(error, LaunchError) and error.on_every_rank and not env.full_traceback():
        if env.launched_rank():
            concurrency.sleep(_FIRST_SECONDS)
            if not _parent_is_this_rank():
                notify.notify(notify.FAILED, reason)
                return
        announce(reason)
        return
    if tracebacks.follows(error):
        if not isinstance(error, RankDied):
            concurrency.sleep(_GRACE_SECONDS)
        if not env.full_traceback():
            announce(reason)
            return
    if chained is None:
        text = f"Exception {where}\n" * bool(where) + tracebacks.text(error)
        again = isinstance(error, KVStoreError) and reason not in text.splitlines()[-1]
        announce(reason, f"{text}{announcement(reason)}\n" if again else text)
    else:
        announce(reason)
        chained()


def _parent_is_this_rank() -> bool:
    """Return whether the parent process has the launcher's index of this rank, too.

    Such a parent is a shell or a program, and no launcher.  The variables may be those of a job
    that has ended, as in a container.  Then no rank 0 writes.
    """
    started = env.launched()
    if started is None:
        return False
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    return f"{started.launcher.rank}={started.rank}".encode() in variables


def _end_child() -> None:
    """End a forked child at once: the interpreter's exit would wait for MPI's other ranks."""
    if running_mpi() is not None:
        _write_held_text()
        _flush()
        os._exit(FAILURE)


def give_time_to_read() -> None:
    """Wait until the launcher has read this rank's output."""
    _flush()
    concurrency.sleep(_READ_SECONDS)


def end_job() -> NoReturn:
    """End all ranks."""
    mpi = running_mpi()
    _write_held_text()
    give_time_to_read()
    if mpi is not None and mpi.COMM_WORLD.Get_size() > 1:
        mpi.COMM_WORLD.Abort(FAILURE)
        os._exit(FAILURE)  # some MPIs return from Abort, and end the process a moment later
    # Before MPI_Init, and after that of a rank that has not joined its launcher, no launcher takes
    # an exit code for the job's failure; every launcher takes a death by signal for it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(FAILURE)


def _write_held_text() -> None:
    """Write the text that another exception hook keeps in memory, and would write after this end.

    The hook of ``torch.distributed`` calls the hook before it with a `StringIO` as stderr.
    """
    if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
        with suppress(Exception):
            sys.__stderr__.write(sys.stderr.getvalue())
            sys.__stderr__.flush()


def running_mpi() -> Any:
    """Return the module mpi4py.MPI between MPI's start and its end; else None."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    running = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    return mpi if running else None


def _flush() -> None:
    """Flush stdout and stderr; a closed pipe is no error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
