"""One thread a process that looks at collectives in flight while no call of ncclkv does.

A program waits by CuPy as well: ``array.get()``, ``print(kv.pull(key))``, a stream's
``synchronize``.  These waits have no deadline, and look at no other rank.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Protocol

from ncclkv.comm.nccl.waiting import ABORT_SECONDS

INTERVAL = 0.1
"""Seconds between two looks."""

_log = logging.getLogger("ncclkv")


class Watched(Protocol):
    """Collectives of one communicator."""

    def look_over(self) -> bool:
        """Look at what is in flight; tell whether there is anything to look at again."""


class Watcher:
    """Looks at what has been added until there is nothing left; sleeps while nothing is.

    Parameters
    ----------
    interval : float
        Seconds between two looks.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._changed = threading.Condition()
        self._ending = threading.Event()
        # Held while it looks: a process that forks then would leave locks held in the child.
        self._looking = threading.Lock()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None
        self._hooked = False

    def add(self, watched: Watched) -> None:
        """Look at `watched` from now on, until its `look_over` finds nothing."""
        with self._changed:
            self._watched.add(watched)
            if self._thread is not None:
                self._changed.notify()
            elif not self._ending.is_set():
                self._start()

    def _start(self) -> None:
        """Start the thread."""
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(
                before=self._looking.acquire,
                after_in_parent=self._looking.release,
                after_in_child=self._forget,
            )
        thread = threading.Thread(target=self._run, name="ncclkv watcher", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, and starts no more threads
            return
        self._thread = thread

    def _forget(self) -> None:
        """Start anew in a forked child, which has neither the thread nor a device."""
        self._looking.release()
        self._changed = threading.Condition()
        self._watched = set()
        self._thread = None

    def stop(self) -> None:
        """End the thread, for good: the interpreter ends, and threads with it."""
        self._ending.set()
        with self._changed:
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(ABORT_SECONDS)

    def _run(self) -> None:
        """Look now and then."""
        while True:
            with self._changed:
                while not self._watched and not self._ending.is_set():
                    self._changed.wait()
            if self._ending.wait(self._interval):
                return
            self._look()

    def _look(self) -> None:
        """Look at all once."""
        with self._changed:
            watched, self._watched = self._watched, set()
        for each in watched:
            with self._looking:
                again = _looked(each)
            if again:
                with self._changed:
                    self._watched.add(each)


def _looked(watched: Watched) -> bool:
    """Look once; return whether to look again, which a failure ends."""
    try:
        return watched.look_over()
    except Exception:
        _log.exception("ncclkv: what is in flight cannot be looked at any more")
        return False


WATCHER = Watcher()
"""The process's own."""
