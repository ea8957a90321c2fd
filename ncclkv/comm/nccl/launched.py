"""Launched works of one communicator, as the watcher polls them."""

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
        """Communicator, until its end."""

    @property
    def graphs(self) -> Graphs:
        """All graphs of the communicator."""

    def settle_dropped(self) -> bool:
        """Release all that is complete; return whether nothing is in flight."""

    def fail(self, error: KVStoreError) -> None:
        """Break the communicator."""


class LaunchedWorks:
    """Works that the watcher polls, from a launch or a drop until nothing is in flight.

    Parameters
    ----------
    progress : NcclProgress
    works : sequence of NcclWork
        Works in flight, in the order of their launch; read only.
    streams : Streams
    diagnosis : Diagnosis
    watcher : Watcher or None
        None: no thread polls.
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
        # A look sends messages to other ranks, and the program's thread may do so concurrently.
        self._watcher = watcher if diagnosis.thread_multiple else None
        self._is_watched = False
        self._first: NcclWork | None = None
        self._deadline = diagnosis.begin()

    def watch(self) -> bool:
        """Add these works to the watcher, if there is one; the caller holds the lock.

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
        """Check the works in flight as a wait of the host does; called by the watcher.

        During a call of the store's own thread this method does nothing, because that call checks.
        The deadline of a work begins when it is the oldest.  An error aborts NCCL, which ends all
        waits for its collectives, and the next call of the store raises the error.

        Returns
        -------
        bool
            Whether any work is in flight.
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
        """Check the oldest work; return whether to look again."""
        if self._progress.graphs.recording is not None:  # a query of an event would spoil it
            return True
        try:
            self._streams.attach()
            first = next((work for work in self._works if not work.reached()), None)
            if first is None:
                if self._first is not None:
                    self._first, self._deadline = None, self._diagnosis.begin()
                return not self._progress.settle_dropped()
            if first is not self._first:
                self._first, self._deadline = first, self._diagnosis.begin()
            self._deadline.tick()
            self._diagnosis.check(self._progress.handle, self._deadline, first)
        except KVStoreError as error:
            _log.error("ncclkv: %s; what is read of this store's values now may be wrong", error)
            self._progress.fail(error)
            return False
        return True
