"""Stacks of an awaited rank: a signal makes the process write those of its threads to stderr.

The handler is faulthandler's, which needs no lock of Python's: it works in the middle of a call
into another library.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from functools import cache

from ncclkv.system import abort
from ncclkv.system.processes import process


@cache
def signal_here() -> int:
    """Install the handler at the first call; return its signal, or 0 when none is free."""
    chosen, stderr = getattr(signal, "SIGUSR2", None), sys.__stderr__
    if (
        chosen is None
        or stderr is None
        or not abort.may_end_the_job()
        or signal.getsignal(chosen) != signal.SIG_DFL
    ):
        return 0
    try:
        faulthandler.register(chosen, file=stderr, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):  # stderr may be closed, or no file
        return 0
    return int(chosen)


def show(pid: int, signum: int) -> None:
    """Make a process write its stacks; a process without a handler, signal 0, is left alone."""
    if signum:
        process(pid).signal(signum)
