"""Collectives in flight of one communicator, as the watcher looks at them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from ncclkv.comm.nccl.binding import Handle
from ncclkv.comm.nccl.diagnosis import Diagnosis
from ncclkv.comm.nccl.graph import Graphs
from ncclkv.comm.nccl.streams import Streams
from ncclkv.comm.nccl.watcher import Watcher
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.errors import KVStoreError

_log = logging.getLogger("ncclkv")


class Watchable(Protocol):
    """Progress of a communicator, as far as the watcher's view uses it."""

    lock: Any

    @property
    def handle(self) -> Handle | None:
        """The communicator, until its end."""

    @property
    def graphs(self) -> Graphs:
        """All graphs of the communicator."""

    def settle_dropped(self) -> bool:
        """Release all that is complete; return whether nothing is in flight."""

    def fail(self, error: KVStoreError) -> None:
        """Break the communicator."""


class LaunchedWorks:
    """Has the watcher look at a flight from a launch, or a drop, until nothing is in flight.

    Parameters
    ----------
    progress : NcclProgress
    works : sequence of NcclWork
        Its collectives, in the order of their launch; not changed here.
    streams : Streams
    diagnosis : Diagnosis
    watcher : Watcher or None
        None where nobody looks.
    """

    def __init__(
        self,
        progress: Watchable,
        works: Sequence[NcclWork],
        streams: Streams,
        diagnosis: Diagnosis,
        watcher: Watcher | None,
    ) -> None:
        self._progress = progress
        self._works = works
        self._streams = streams
        self._diagnosis = diagnosis
        # It communicates with other ranks, while the program may do so in its own thread.
        self._watcher = watcher if diagnosis.thread_multiple else None
        self._is_watched = False
        self._first: NcclWork | None = None
        self._watch = diagnosis.watch()

    def watch(self) -> bool:
        """Have the watcher look, if there is one; the caller holds the flight's lock.

        Returns
        -------
        bool
            Whether there is a watcher.
        """
        if self._watcher is None:
            return False
        if not self._is_watched:
            self._is_watched = True
            self._watcher.add(self)
        return True

    def look_over(self) -> bool:
        """Look at what is in flight, as a wait of the host does; called by the watcher.

        While a call of the store's own thread is under way that call looks, and this does not.  A
        collective's deadline counts from when it came first in line.  On trouble NCCL is aborted,
        which ends all waits for its collectives, and the next call of the store raises the error.

        Returns
        -------
        bool
            Whether anything is in flight.
        """
        lock = self._progress.lock
        if not lock.acquire(blocking=False):
            return True
        try:
            self._is_watched = self._progress.handle is not None and self._look()
            return self._is_watched
        finally:
            lock.release()

    def _look(self) -> bool:
        """Look; tell whether anything is in flight that is not in vain."""
        if self._progress.graphs.recording is not None:  # no event may be looked at in a capture
            return True
        try:
            self._streams.attach()
            first = next((work for work in self._works if not work.reached()), None)
            if first is None:
                if self._first is not None:
                    self._first, self._watch = None, self._diagnosis.watch()
                return not self._progress.settle_dropped()
            if first is not self._first:
                self._first, self._watch = first, self._diagnosis.watch()
            self._watch.tick()
            self._diagnosis.check(self._progress.handle, self._watch, first)
        except KVStoreError as error:
            _log.error("ncclkv: %s; what is read of this store's values now may be wrong", error)
            self._progress.fail(error)
            return False
        return True
