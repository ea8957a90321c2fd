"""Dropped communicators: unreferenced, but not closed."""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Any, Protocol

from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl.binding import Handle
from ncclkv.comm.nccl.streams import Streams
from ncclkv.errors import CommAborted, KVStoreError

_REASON = "a communicator of GPUs, or its store, was dropped without an end"


class Owner(Protocol):
    """Progress of a communicator, as far as its finalizer uses it."""

    lock: Any

    @property
    def handle(self) -> Handle | None:
        """Communicator, until its end."""

    def watch(self) -> bool:
        """Let the watcher look; return whether there is one."""

    def drop_complete(self) -> bool:
        """Release all that is complete; return whether nothing is in flight."""

    def fail(self, error: KVStoreError) -> None:
        """Break the communicator."""


class Dropped:
    """Finalizer of a dropped communicator: warns, and aborts it once no work is in flight.

    Parameters
    ----------
    progress : NcclProgress
    peers : Communicator
        The ranks in host memory, which receive the reason.
    streams : Streams
    """

    def __init__(self, progress: Owner, peers: Communicator, streams: Streams) -> None:
        self._progress = progress
        self._peers = peers
        self._streams = streams
        self._who = f"rank {peers.rank} of {peers.size}"
        self._process = os.getpid()
        self._is_dropped = False
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def end_with(self, owner: object) -> None:
        """Free the communicator when `owner` is dropped without an end."""
        self._finalizer = weakref.finalize(owner, self._drop)
        self._finalizer.atexit = False

    def forget(self) -> None:
        """Detach the finalizer: the communicator has ended.

        A finalizer refers to the works in flight, and they may refer to the owner.
        """
        if self._finalizer is not None:
            self._finalizer.detach()

    def _drop(self) -> None:
        """Warn of the dropped communicator, and let the watcher free it."""
        if os.getpid() != self._process:  # a forked child has no device
            return
        with self._progress.lock:
            if self._progress.handle is None:
                return
            self._is_dropped = True
            # This thread may be in a capture, which a query of an event spoils.
            if not self._progress.watch():
                try:
                    self.settle()
                except KVStoreError as error:  # the device is lost
                    self._progress.fail(error)
        # Last, because it raises if warnings are errors.
        warnings.warn(
            f"{self._who}: {_REASON}; call close(), or create it in a with statement",
            ResourceWarning,
            stacklevel=2,
        )

    def settle(self) -> bool:
        """Release complete works, and the communicator if it was dropped and is idle.

        Returns
        -------
        bool
            Whether nothing is in flight.
        """
        idle = self._progress.drop_complete()
        if idle and self._is_dropped and self._progress.handle is not None:
            self._peers.abort(_REASON)
            self._progress.fail(CommAborted(f"{self._who}: {_REASON}"))
            self._streams.close()
        return idle
