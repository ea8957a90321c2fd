"""Descendants: processes that a command leaves behind, such as daemons; adopt and kill them."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection
from contextlib import suppress

from ncclkv import concurrency
from ncclkv.system.processes import stat_of

_PR_SET_CHILD_SUBREAPER = 36

_SECONDS = 2.0
"""Seconds for killed processes to end."""

_PAUSE = 5e-3


def adopt() -> None:
    """Make this process the parent, in place of init, of descendants whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Return the children of this process, ended ones included."""
    here = str(os.getpid())
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if stat_of(pid)[1:2] == [here]]


def reap(but: int) -> None:
    """Reap adopted processes that ended, except process `but`."""
    with suppress(ChildProcessError):
        while True:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            ended = os.waitid(os.P_ALL, 0, options)
            if ended is None or ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, 0)


def end_all(spared: Collection[int] = ()) -> None:
    """Kill all children except `spared`, and what they leave behind; wait for their ends."""
    limit = concurrency.monotonic() + _SECONDS
    while left := [pid for pid in children() if pid not in spared]:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        if concurrency.monotonic() > limit:
            return
        concurrency.sleep(_PAUSE)
