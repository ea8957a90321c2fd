"""A signal on which a process writes to stderr where each of its threads stands.

It is faulthandler's, which needs no lock of Python's: a rank that others wait for shows them even
in the middle of a call into another library.
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
    """The signal that this process was made to take, at the first call; 0 if none is free."""
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


def show(number: int, chosen: int) -> None:
    """Let the process of that number show its stacks; one that takes no signal is left alone."""
    if chosen:
        process(number).signal(chosen)
