"""`Lifetime`: an NCCL communicator from its creation to its end, and the works in flight on it."""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl.binding import Binding, Handle, Look
from ncclkv.comm.nccl.graph import Graphs
from ncclkv.comm.nccl.streams import Event, Streams
from ncclkv.comm.nccl.watcher import WATCHER
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.errors import CommAborted, KVStoreError, UsageError, again

# At the end of the process these are aborted: a kernel that waits for a peer would never end.
_open: set[Lifetime] = set()
_process = os.getpid()


class Lifetime:
    """An open NCCL communicator.

    ``with lifetime:`` locks the communicator and raises the error that broke it; a `KVStoreError`
    inside the block breaks it.

    Parameters
    ----------
    peers : Communicator
        The same ranks in host memory.
    binding : Binding
    streams : Streams
        Streams of this rank's device.
    handle : Handle

    Attributes
    ----------
    peers, binding, streams
        As the parameters.
    who : str
        This rank, for messages.
    handle : Handle or None
        NCCL's communicator, until its end.
    failure : KVStoreError or None
        Error that every later call raises.
    lock : RLock
        Held by the thread that uses the communicator: that of the store, or the watcher's.
    graphs : Graphs
        The graphs that refer to the communicator.
    works : deque of NcclWork
        Works in flight, in the order of their launch.
    kept : deque of (Event, tuple)
        Objects that a stream uses until the event.
    at_end : list of callable
        Functions called when the communicator ends, by an error or not.
    """

    def __init__(
        self, peers: Communicator, binding: Binding, streams: Streams, handle: Handle
    ) -> None:
        self.peers = peers
        self.binding = binding
        self.streams = streams
        self.who = f"rank {peers.rank} of {peers.size}"
        self.handle: Handle | None = handle
        self.failure: KVStoreError | None = None
        self.lock = peers.lock
        self.graphs = Graphs(streams)
        self.works: deque[NcclWork] = deque()
        self.kept: deque[tuple[Event, tuple[object, ...]]] = deque()
        self.at_end: list[Callable[[], object]] = [self.graphs.free]
        _open.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self.check()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            # In a capture no work is in flight: a wrong call spoils the graph alone.
            spoils = self.graphs.recording is not None and isinstance(error, UsageError)
            if isinstance(error, KVStoreError) and not spoils:
                self.fail(error)
        finally:
            self.lock.release()

    def check(self) -> None:
        """Raise the error that broke the communicator, if there is one."""
        if self.failure is not None:
            raise again(self.failure)

    def fail(self, error: KVStoreError) -> None:
        """Abort the works in flight, and raise `error` in all later calls."""
        with self.lock:
            self.failure = self.failure or again(error)
            handle = self._end()
            if handle is not None:
                with suppress(KVStoreError):  # the first error has the cause
                    self.binding.abort(handle)

    def destroy(self, farewell: KVStoreError, look: Look) -> None:
        """Free the idle communicator, together with all ranks; later calls raise `farewell`.

        ``look()`` is called repeatedly meanwhile, and raises if a rank cannot join any more.
        """
        with self.lock:
            self.failure = farewell
            self.binding.destroy(self._end(), look)

    def _end(self) -> Handle | None:
        """Return the handle for its last call, and call the functions of `at_end`."""
        handle, self.handle = self.handle, None
        _open.discard(self)
        for function in self.at_end:
            function()
        return handle

    def drop_complete(self) -> bool:
        """Release the complete collectives and their buffers.

        Returns
        -------
        bool
            Whether nothing is in flight, and no object is kept for a stream.
        """
        while self.works and self.works[0].reached():
            # Removed first: its buffers may hold the last reference to the communicator itself.
            self.works.popleft().release()
        while self.kept and self.kept[0][0].done():
            self.kept.popleft()
        return not (self.works or self.kept)


@atexit.register
def _abort_all() -> None:
    """Abort all open communicators at the end of the process, without waiting for peers."""
    if os.getpid() != _process:  # a forked child has no device
        return
    WATCHER.stop()
    for lifetime in list(_open):
        lifetime.fail(CommAborted("the process ended without closing the communicator"))
