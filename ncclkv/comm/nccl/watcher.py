"""Watcher: one thread a process that polls works in flight between the calls of ncclkv.

A program also waits in CuPy: ``array.get()``, ``print(kv.pull(key))``, a stream's ``synchronize``.
Such a wait has no deadline, and does not notice a lost rank.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol

from ncclkv import concurrency
from ncclkv.comm.nccl.deadlines import ABORT_SECONDS

INTERVAL = 0.1
"""Seconds between two polls."""

_log = logging.getLogger("ncclkv")


class WatchedWorks(Protocol):
    """Works of one communicator."""

    def look_over(self) -> bool:
        """Check the works in flight; return whether to poll again."""


class Watcher:
    """Thread that polls the added works, and sleeps while there are none.

    Parameters
    ----------
    interval : float
        Seconds between two polls.
    """

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._changed = concurrency.Condition()
        self._ending = concurrency.Event()
        # Held during a poll: a fork in a poll would leave locks held in the child.
        self._looking = concurrency.Lock()
        self._watched: dict[WatchedWorks, None] = {}  # in the order of `add`, not of addresses
        self._thread: concurrency.Thread | None = None
        self._hooked = False

    def add(self, watched: WatchedWorks) -> None:
        """Poll `watched` from now on, until its `look_over` returns False."""
        with self._changed:
            self._watched[watched] = None
            if self._thread is not None:
                self._changed.notify()
            elif not self._ending.is_set():
                self._start()

    def _start(self) -> None:
        """Start the thread."""
        if not self._hooked:
            self._hooked = True
            self._hook_forks()
        thread = concurrency.Thread(target=self._run, name="ncclkv watcher", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # at its end the interpreter starts no more threads
            return
        self._thread = thread

    def _hook_forks(self) -> None:
        """Let forks of the process wait for the end of a poll."""
        os.register_at_fork(
            before=self._looking.acquire,
            after_in_parent=self._looking.release,
            after_in_child=self._forget,
        )

    def _forget(self) -> None:
        """Reset in a forked child, which has neither the thread nor a device."""
        self._looking.release()
        self._changed = concurrency.Condition()
        self._watched = {}
        self._thread = None

    def stop(self) -> None:
        """End the thread for good, at the end of the interpreter."""
        self._ending.set()
        with self._changed:
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(ABORT_SECONDS)

    def _run(self) -> None:
        """Poll all added works, once an interval."""
        while True:
            with self._changed:
                while not self._watched and not self._ending.is_set():
                    self._changed.wait()
            if self._ending.wait(self._interval):
                return
            self._look()

    def _look(self) -> None:
        """Poll each of the added works once."""
        with self._changed:
            watched, self._watched = self._watched, {}
        for each in watched:
            with self._looking:
                again = _poll(each)
            if again:
                with self._changed:
                    self._watched[each] = None


def _poll(watched: WatchedWorks) -> bool:
    """Poll once; return whether to poll again: False after a failure."""
    try:
        return watched.look_over()
    except Exception:
        _log.exception("ncclkv: the works in flight of a communicator are not checked any more")
        return False


WATCHER = Watcher()
"""Watcher of the process."""
