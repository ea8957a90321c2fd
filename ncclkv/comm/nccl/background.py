"""`BackgroundCheck`: checks of a communicator between the calls of ncclkv, and after its drop."""

from __future__ import annotations

import logging
import os
import warnings
import weakref

from ncclkv.comm.nccl.diagnosis import Diagnosis
from ncclkv.comm.nccl.lifetime import Lifetime
from ncclkv.comm.nccl.order_check import OrderCheck
from ncclkv.comm.nccl.watcher import Watcher
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.errors import CommAborted, KVStoreError

_log = logging.getLogger("ncclkv")

_REASON = "a communicator of GPUs, or its store, was dropped without an end"


class BackgroundCheck:
    """Checks one communicator while no call of ncclkv does.

    The watcher polls the works in flight and the comparisons of calls, from a launch until nothing
    is in flight and all calls are compared.  If the communicator is dropped without an end, a
    finalizer warns, and the next idle poll aborts it.

    Parameters
    ----------
    lifetime : Lifetime
    diagnosis : Diagnosis
    order_check : OrderCheck
    watcher : Watcher or None
        None: no thread polls.
    """

    def __init__(
        self,
        lifetime: Lifetime,
        diagnosis: Diagnosis,
        order_check: OrderCheck,
        watcher: Watcher | None,
    ) -> None:
        self._lifetime = lifetime
        self._diagnosis = diagnosis
        self._order_check = order_check
        # A check sends messages to other ranks, and the program's thread may do so concurrently.
        self._watcher = watcher if lifetime.peers.thread_multiple else None
        self._is_watched = False
        self._oldest: NcclWork | None = None
        self._deadline = diagnosis.begin()
        self._process = os.getpid()
        self._is_dropped = False

    def end_with(self, owner: object) -> None:
        """Free the communicator when `owner` is dropped without an end."""
        finalizer = weakref.finalize(owner, self._drop)
        finalizer.atexit = False
        # A finalizer refers to the works in flight, and they may refer to the owner.
        self._lifetime.at_end.append(finalizer.detach)

    def watch(self) -> bool:
        """Add this check to the watcher, if there is one; the caller holds the lock.

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
            Whether any work is in flight, or any comparison of calls.
        """
        lock = self._lifetime.lock
        if not lock.acquire(blocking=False):
            return True
        try:
            self._is_watched = self._lifetime.handle is not None and self._look()
            return self._is_watched
        finally:
            lock.release()

    def _look(self) -> bool:
        """Check the oldest work; return whether to poll again."""
        if self._lifetime.graphs.recording is not None:  # a query of an event would spoil it
            return True
        try:
            self._lifetime.streams.attach()
            oldest = next((work for work in self._lifetime.works if not work.reached()), None)
            if oldest is not self._oldest:
                self._oldest, self._deadline = oldest, self._diagnosis.begin()
            if oldest is None:
                # A rank that waits for a barrier needs this rank's messages, also while this rank
                # waits in CuPy for a collective that needs that rank.
                compared = self._order_check.poll()
                return not (self._release() and compared)
            self._deadline.tick()
            self._diagnosis.check(self._deadline, oldest)
        except KVStoreError as error:
            _log.error("ncclkv: %s; values read from this store now may be wrong", error)
            self._lifetime.fail(error)
            return False
        return True

    def _release(self) -> bool:
        """Release complete works, and the communicator if it was dropped and is idle.

        Returns
        -------
        bool
            Whether nothing is in flight.
        """
        idle = self._lifetime.drop_complete()
        if idle and self._is_dropped and self._lifetime.handle is not None:
            self._lifetime.peers.abort(_REASON)
            self._lifetime.fail(CommAborted(f"{self._lifetime.who}: {_REASON}"))
            self._lifetime.streams.close()
        return idle

    def _drop(self) -> None:
        """Warn of the dropped communicator, and let the watcher free it."""
        if os.getpid() != self._process:  # a forked child has no device
            return
        with self._lifetime.lock:
            if self._lifetime.handle is None:
                return
            self._is_dropped = True
            # This thread may be in a capture, which a query of an event spoils.
            if not self.watch():
                try:
                    self._release()
                except KVStoreError as error:  # the device is lost
                    self._lifetime.fail(error)
        # Last, because it raises if warnings are errors.
        warnings.warn(
            f"{self._lifetime.who}: {_REASON}; call close(), or create it in a with statement",
            ResourceWarning,
            stacklevel=2,
        )
