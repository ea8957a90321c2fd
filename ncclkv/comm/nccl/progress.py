"""Progress of the collectives in flight on a device, and the wait of the host for them.

NCCL has no deadline and does not notice a dead rank of the same host.  So every wait of the host
polls: an event each time, and every few milliseconds the clock, NCCL's errors and the ranks that
have left.  Between the calls of ncclkv a watcher polls.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl.binding import Binding, Handle
from ncclkv.comm.nccl.diagnosis import Diagnosis
from ncclkv.comm.nccl.dropped import Dropped
from ncclkv.comm.nccl.graph import Graphs, NcclGraph
from ncclkv.comm.nccl.guard import Guard
from ncclkv.comm.nccl.launched import LaunchedWorks
from ncclkv.comm.nccl.order_check import OrderCheck
from ncclkv.comm.nccl.streams import Event, Streams
from ncclkv.comm.nccl.waiting import LEEWAY
from ncclkv.comm.nccl.watcher import WATCHER, Watcher
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.errors import (
    CommAborted,
    CommError,
    KVStoreError,
    again,
)
from ncclkv.system import watchdog

Enqueue = Callable[[Handle, int], None]
"""Function that puts a collective of an NCCL communicator on a stream."""

_PUTS = "putting a collective on a stream"

# At the end of the process these are aborted: a kernel that waits for a peer would never end.
_open: set[NcclProgress] = set()
_process = os.getpid()


class NcclProgress:
    """Works in flight of one NCCL communicator, which it owns.

    Attributes
    ----------
    failure : KVStoreError or None
        Error that every later call raises.
    handle : Handle or None
        The communicator, until its end.
    lock : RLock
        Held by the thread that uses the communicator: that of the store, or the watcher's.
    guard : Guard
        ``with progress.guard:`` encloses each block whose failure breaks the communicator.
    """

    def __init__(
        self,
        peers: Communicator,
        binding: Binding,
        streams: Streams,
        handle: Handle,
        settings: Mapping[str, str],
        watcher: Watcher | None,
    ) -> None:
        self._peers = peers
        self._binding = binding
        self._streams = streams
        self.handle: Handle | None = handle
        self._works: deque[NcclWork] = deque()
        self._kept: deque[tuple[Event, tuple[object, ...]]] = deque()
        self._order_check = OrderCheck(peers)
        self._diagnosis = Diagnosis(peers, binding, self._order_check)
        self.lock = peers.lock
        self._last: int | None = None
        self._who = f"rank {peers.rank} of {peers.size}"
        self._settings = settings
        self._has_launched = False
        self._alarm = watchdog.Alarm(f"{_PUTS} of {self._who}", peers.timeout + LEEWAY)
        self.failure: KVStoreError | None = None
        self.guard = Guard(self)
        self.graphs = Graphs(streams)
        self.dropped = Dropped(self, peers, streams)
        self._view = LaunchedWorks(self, self._works, streams, self._diagnosis, watcher)
        _open.add(self)

    def watch(self) -> bool:
        """Let the watcher look at what is in flight; return whether there is a watcher."""
        return self._view.watch()

    def settle_dropped(self) -> bool:
        """Release all that is complete, and a dropped communicator if it is idle.

        Returns
        -------
        bool
            Whether nothing is in flight.
        """
        return self.dropped.settle()

    def check(self) -> None:
        """Raise the error that broke the communicator, if there is one."""
        if self.failure is not None:
            raise again(self.failure)

    def fail(self, error: KVStoreError) -> None:
        """Abort the works in flight, and raise `error` in all later calls."""
        with self.lock:
            self.failure = self.failure or again(error)
            handle, self.handle = self.handle, None
            self._alarm.close()
            self.graphs.free()
            self.dropped.forget()
            if handle is not None:
                _open.discard(self)
                with suppress(KVStoreError):  # the first error has the cause
                    self._binding.abort(handle)

    def destroy(self, farewell: KVStoreError) -> None:
        """Free the idle communicator, together with all ranks."""
        with self.lock:
            handle, self.handle = self.handle, None
            self.failure = farewell
            self._alarm.close()
            _open.discard(self)
            self.graphs.free()
            self.dropped.forget()
            self._binding.destroy(handle)

    def hold_current(self, event: Event) -> None:
        """Make the current stream wait for `event`."""
        self._streams.wait(self._streams.current(), event)

    def sync_stream(self) -> None:
        """Make the current stream wait for the stream that was current at the last call."""
        self.check()
        self._streams.check_device()
        current = self._streams.current()
        if self.graphs.recording is not None:
            self.graphs.check_stream(current)
            return
        if self._last not in (None, current):
            self._streams.wait(current, self._streams.record(self._last))
        self._last = current

    def keep_alive(self, objects: tuple[object, ...]) -> None:
        """Refer to `objects` until the current stream has completed its present work.

        CuPy reuses the memory of an array in the order of the stream that allocated it, even while
        another stream still uses it.
        """
        if self.graphs.recording is not None:
            self.graphs.recording.keep_alive(*objects)
            return
        with self.guard:
            self.drop_complete()
            self._kept.append((self._streams.record(self._streams.current()), objects))

    @contextmanager
    def on_comm_stream(self) -> Iterator[None]:
        """Make the communication stream current, ordered after and before the caller's stream."""
        streams, stream = self._streams, self._streams.communication
        streams.wait(stream, streams.record(streams.current()))
        try:
            with streams.on(stream):
                yield
        finally:
            self.hold_current(streams.record(stream))

    def capture(self) -> AbstractContextManager[NcclGraph]:
        """Capture the launches of a block."""
        self.check()
        return self.graphs.record(NcclGraph(self))

    def launch(
        self,
        what: str,
        enqueue: Enqueue,
        apply: Callable[[], None] | None,
        *kept: object,
    ) -> NcclWork:
        """Put a collective, and the kernels of `apply` after it, on the communication stream."""
        with self.lock:
            self.check()
            if self.graphs.recording is not None:
                return self._record(self.graphs.recording, what, enqueue, apply, *kept)
            work = self._launch(what, enqueue, apply, *kept)
            self._works.append(work)
            self.watch()
            return work

    def _launch(
        self, what: str, enqueue: Enqueue, apply: Callable[[], None] | None, *kept: object
    ) -> NcclWork:
        """Launch a collective; an error breaks the communicator."""
        try:
            self.drop_complete()
            self._order_check.submit(what)
            # `apply` writes arrays that it refers to: they must outlive its kernels.
            return NcclWork(self, self._put(what, enqueue, apply), (*kept, apply), what)
        except KVStoreError as error:
            self.fail(error)
            raise
        except BaseException as error:
            # Ctrl-C, or an error of the caller's `apply`: the stream has a part of the work alone.
            self.fail(
                CommAborted(
                    f"{self._who}: {what} was interrupted by {type(error).__name__}: {error}"
                )
            )
            raise

    def _record(
        self,
        graph: NcclGraph,
        what: str,
        enqueue: Enqueue,
        apply: Callable[[], None] | None,
        *kept: object,
    ) -> NcclWork:
        """Launch a collective into a graph; a wrong call spoils the graph alone."""
        try:
            work = NcclWork(self, self._put(what, enqueue, apply), (), what)
        except CommError as error:
            self.fail(error)
            raise
        graph.keep_alive(*kept, apply)
        graph.add(work)
        return work

    def _put(
        self, what: str, enqueue: Enqueue, apply: Callable[[], None] | None
    ) -> tuple[Event, Event]:
        """Put a collective on the stream; return the events before and after all of it."""
        streams, stream = self._streams, self._streams.communication
        # The gradients are written on the caller's stream: the collective must come after them.
        ready = streams.record(streams.current())
        streams.wait(stream, ready)
        self._enqueue(what, enqueue, stream)
        if apply is not None:
            with streams.on(stream):
                apply()
        return ready, streams.record(stream)

    def _enqueue(self, what: str, enqueue: Enqueue, stream: int) -> None:
        """Call the binding; its errors get this rank and the collective.

        NCCL may connect ranks in this call and wait for a missing rank: the watchdog ends that.
        """
        reads = not self._has_launched or self.graphs.recording is not None
        try:
            with self._alarm, env.temporarily(self._settings) if reads else nullcontext():
                enqueue(self.handle, stream)
        except KVStoreError as error:
            raise type(error)(f"{self._who}: {what}: {error}") from error
        self._has_launched = True

    def drop_complete(self) -> bool:
        """Release the complete collectives and their buffers.

        Returns
        -------
        bool
            Whether nothing is in flight, and no object is kept for the current stream.
        """
        while self._works and self._works[0].reached():
            # Removed first: its buffers may hold the last reference to the communicator itself.
            self._works.popleft().release()
        while self._kept and self._kept[0][0].done():
            self._kept.popleft()
        return not (self._works or self._kept)

    def synchronize(self, timeout: float | None) -> None:
        """Block until all works in flight and all work of the current stream are complete."""
        self.graphs.refuse("synchronize")
        limit = self._peers.timeout if timeout is None else timeout
        with self.guard:
            streams = self._streams
            collectives = streams.record(streams.communication)
            others = streams.record(streams.current())
            deadline = self._diagnosis.begin(limit)
            while not (collectives.done() and others.done()):
                if deadline.pause():
                    work = None if collectives.done() else self._oldest()
                    self._diagnosis.check(self.handle, deadline, work)
            self._order_check.drain(limit)
            while self._works:
                self._works.popleft().release()
            self.drop_complete()

    def _oldest(self) -> NcclWork | str:
        """Return the first collective that is not complete."""
        self.drop_complete()
        return self._works[0] if self._works else "a collective"


@atexit.register
def _abort_all() -> None:
    """Abort all open communicators at the end of the process, without waiting for peers."""
    if os.getpid() != _process:  # a forked child has no device
        return
    WATCHER.stop()
    for progress in list(_open):
        progress.fail(CommAborted("the process ended without closing the communicator"))
