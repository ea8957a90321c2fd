"""Collectives in flight on a device, what has gone wrong with them, and the wait of the host.

NCCL has no deadline and does not notice a rank that is dead on the same host, so every wait of the
host is a loop: it looks at an event, and every few milliseconds at the clock, at NCCL's own errors
and at the ranks that have said farewell.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from ncclkv import env, watchdog
from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl import bounded
from ncclkv.comm.nccl.accord import Accord
from ncclkv.comm.nccl.binding import Binding, Handle, version_text
from ncclkv.comm.nccl.graph import Graphs, NcclGraph
from ncclkv.comm.nccl.guard import Guard
from ncclkv.comm.nccl.streams import Event, Streams
from ncclkv.comm.nccl.watch import Watch
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.comm.words import named
from ncclkv.errors import (
    CommAborted,
    CommError,
    CommTimeout,
    KVStoreError,
    RankDied,
    RankLost,
)

Enqueue = Callable[[Handle, int], None]
"""Puts a collective of an NCCL communicator on a stream."""

_PUTS = "putting a collective on a stream"

# Kept here until closed: CuPy destroys a communicator that nobody refers to, which waits for peers.
_open: set[Flight] = set()
_process = os.getpid()


class Flight:
    """The collectives in flight of one NCCL communicator; takes the communicator over.

    Attributes
    ----------
    failure : KVStoreError or None
        What is raised by every later call.
    guard : Guard
        ``with flight.guard:`` around whatever leaves the communicator broken when it fails.
    """

    def __init__(
        self,
        peers: Communicator,
        binding: Binding,
        streams: Streams,
        handle: Handle,
        settings: Mapping[str, str],
    ) -> None:
        self._peers = peers
        self._binding = binding
        self._streams = streams
        self._handle: Handle | None = handle
        self._works: deque[NcclWork] = deque()
        self._kept: deque[tuple[Event, tuple[object, ...]]] = deque()
        self._accord = Accord(peers)
        self._last: int | None = None
        self._who = f"rank {peers.rank} of {peers.size}"
        self._settings = settings
        self._has_launched = False
        self._alarm = watchdog.Alarm(f"{_PUTS} of {self._who}", peers.timeout + bounded.LEEWAY)
        self.failure: KVStoreError | None = None
        self.guard = Guard(self)
        self.graphs = Graphs(streams)
        _open.add(self)

    def check(self) -> None:
        """Raise again what has gone wrong before."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def fail(self, error: KVStoreError) -> None:
        """Stop what is in flight, and raise `error` in all later calls."""
        self.failure = self.failure or error
        handle, self._handle = self._handle, None
        self._alarm.close()
        self.graphs.free()
        if handle is not None:
            _open.discard(self)
            with suppress(KVStoreError):  # what has gone wrong already says more
                self._binding.abort(handle)

    def destroy(self, farewell: KVStoreError) -> None:
        """Free the communicator, which is idle, together with all ranks."""
        handle, self._handle = self._handle, None
        self.failure = farewell
        self._alarm.close()
        _open.discard(self)
        self.graphs.free()
        self._binding.destroy(handle)

    def hold_current(self, event: Event) -> None:
        """Make the current stream wait for `event`."""
        self._streams.wait(self._streams.current(), event)

    def follow(self) -> None:
        """Let the current stream wait for the one that was current before, if that was another."""
        self._streams.check_device()
        current = self._streams.current()
        if self.graphs.recording is not None:
            self.graphs.check_stream(current)
            return
        if self._last not in (None, current):
            self._streams.wait(current, self._streams.record(self._last))
        self._last = current

    def keep(self, objects: tuple[object, ...]) -> None:
        """Refer to `objects` until the current stream has done what it has been given.

        CuPy gives the memory of an array to others in the order of the stream it was made on, and
        knows nothing of other streams that still use it.
        """
        if self.graphs.recording is not None:
            self.graphs.recording.keep(*objects)
            return
        with self.guard:
            self._drop_complete()
            self._kept.append((self._streams.record(self._streams.current()), objects))

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Make the communication stream the current one, in the order of the caller's own."""
        streams, stream = self._streams, self._streams.communication
        streams.wait(stream, streams.record(streams.current()))
        try:
            with streams.on(stream):
                yield
        finally:
            self.hold_current(streams.record(stream))

    def capture(self) -> AbstractContextManager[NcclGraph]:
        """Record what is launched in a block."""
        self.check()
        return self.graphs.record(NcclGraph(self))

    def launch(
        self,
        what: str,
        enqueue: Enqueue,
        apply: Callable[[], None] | None,
        *kept: object,
    ) -> NcclWork:
        """Put a collective, and what follows it, on the communication stream."""
        if self.graphs.recording is not None:
            return self._record(self.graphs.recording, what, enqueue, apply, *kept)
        try:
            self._drop_complete()
            self._accord.post(what)
            # What `apply` writes is under way as well.
            work = NcclWork(self, self._put(what, enqueue, apply), (*kept, apply), what)
        except KVStoreError as error:
            self.fail(error)
            raise
        except BaseException as error:
            # Ctrl-C, or an `apply` of the caller's; what is on the stream is not whole.
            self.fail(
                CommAborted(
                    f"{self._who}: {what} was broken off by {type(error).__name__}: {error}"
                )
            )
            raise
        self._works.append(work)
        return work

    def _record(
        self,
        graph: NcclGraph,
        what: str,
        enqueue: Enqueue,
        apply: Callable[[], None] | None,
        *kept: object,
    ) -> NcclWork:
        """The same, into a graph: nothing is in flight, so a wrong call spoils that alone."""
        try:
            work = NcclWork(self, self._put(what, enqueue, apply), (), what)
        except CommError as error:
            self.fail(error)
            raise
        graph.keep(*kept, apply)
        graph.add(work)
        return work

    def _put(self, what: str, enqueue: Enqueue, apply: Callable[[], None] | None) -> Event:
        """Put it there; the event is after all of it."""
        streams, stream = self._streams, self._streams.communication
        # After what the caller has put on its stream: the gradients are written there.
        streams.wait(stream, streams.record(streams.current()))
        self._enqueue(what, enqueue, stream)
        if apply is not None:
            with streams.on(stream):
                apply()
        return streams.record(stream)

    def _enqueue(self, what: str, enqueue: Enqueue, stream: int) -> None:
        """Call the binding; say who called it for what when it refuses.

        NCCL may connect ranks in there, and wait for one that is missing, whatever else happens.
        """
        reads = not self._has_launched or self.graphs.recording is not None
        try:
            with self._alarm, env.temporarily(self._settings) if reads else nullcontext():
                enqueue(self._handle, stream)
        except KVStoreError as error:
            raise type(error)(f"{self._who}: {what}: {error}") from error
        self._has_launched = True

    def _drop_complete(self) -> None:
        """Forget the collectives that are complete, and with them their buffers."""
        while self._works and self._works[0].complete():
            self._works.popleft()
        while self._kept and self._kept[0][0].done():
            self._kept.popleft()

    def synchronize(self, timeout: float | None) -> None:
        """Block until all that is in flight is complete, and all work of the current stream."""
        self.graphs.refuse("synchronize")
        limit = self._peers.timeout if timeout is None else timeout
        with self.guard:
            streams = self._streams
            collectives = streams.record(streams.communication)
            others = streams.record(streams.current())
            watch = Watch(limit)
            while not (collectives.done() and others.done()):
                if watch.pause():
                    self._look(watch, in_flight=not collectives.done())
            self._accord.settle(limit)
            while self._works:
                self._works.popleft().release()
            self._drop_complete()

    def _look(self, watch: Watch, in_flight: bool) -> None:
        """Raise when NCCL reports an error, a rank has left, or the deadline has passed."""
        what = self._oldest() if in_flight else "the work of the current stream"
        problem = self._binding.async_error(self._handle)
        if problem is not None:
            raise CommAborted(f"{self._who}: {what}: {self._named()} reports: {problem}")
        departed = self._peers.departed() if in_flight else {}
        dead = self._accord.dead() if in_flight else set()
        mismatch = self._accord.look(watch.waited) if in_flight else None
        if mismatch is not None:
            raise mismatch
        if departed and watch.lost_long_ago():
            rank, reason = min(departed.items())
            raise RankLost(
                f"{self._who}: rank {rank} left while {what} waited for it; it said: {reason}"
            )
        if dead and watch.lost_long_ago():
            raise RankDied(
                f"{self._who}: {named(dead)} ended while {what} was in flight, and said nothing; "
                f"{self._accord.last(dead)}"
            )
        if watch.late():
            raise CommTimeout(
                f"{self._who}: {what} waited {watch.waited:.1f} s (timeout {watch.limit:g} s) for "
                f"{self._missing() if in_flight else 'the device; give it a longer timeout'}"
            )

    def _oldest(self) -> str:
        """The first collective that is not complete, in words."""
        self._drop_complete()
        return str(self._works[0]) if self._works else "a collective"

    def _missing(self) -> str:
        """What a collective that does not end waits for."""
        if self._peers.size == 1:
            return "the device; give it a longer timeout"
        last = self._accord.last(self._accord.others)
        return (
            f"the other ranks ({self._named()} does not tell which of them); all ranks must make "
            f"the same calls in the same order: look at what the others did instead"
            f"{'; ' if last else ''}{last}"
        )

    def _named(self) -> str:
        """The library with its version."""
        return f"{self._binding.name} ({version_text(self._binding.version())})"


@atexit.register
def _abort_all() -> None:
    """At the end of the process, free what was not closed, without waiting for anybody."""
    if os.getpid() != _process:  # a forked child has no device
        return
    for flight in list(_open):
        flight.fail(CommAborted("the process ended without closing the communicator"))
