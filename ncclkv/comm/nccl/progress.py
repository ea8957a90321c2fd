"""Progress: launches of collectives on a device, and the waits of the host for them.

NCCL has no deadline and does not notice a dead rank of the same host.  So every wait of the host
polls events, and every few milliseconds the clock, NCCL's errors and the ranks that have left.
Between the calls of ncclkv a watcher polls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ncclkv import concurrency, env
from ncclkv.comm import callbacks
from ncclkv.comm.nccl.background import BackgroundCheck
from ncclkv.comm.nccl.binding import Handle, Look
from ncclkv.comm.nccl.deadlines import LEEWAY
from ncclkv.comm.nccl.diagnosis import Diagnosis
from ncclkv.comm.nccl.graph import NcclGraph
from ncclkv.comm.nccl.lifetime import Lifetime
from ncclkv.comm.nccl.order_check import OrderCheck
from ncclkv.comm.nccl.stream_clock import StreamClock, StreamSpan
from ncclkv.comm.nccl.streams import PER_THREAD
from ncclkv.comm.nccl.watcher import Watcher
from ncclkv.comm.nccl.work import NcclWork
from ncclkv.comm.types import Work
from ncclkv.errors import CommAborted, KVStoreError, UsageError
from ncclkv.system import watchdog

Enqueue = Callable[[Handle, int], None]
"""Function that puts a collective of an NCCL communicator on a stream."""

Update = Callable[[], None]
"""Function whose kernels follow a collective on its stream."""


class NcclProgress:
    """Launches and waits of one NCCL communicator.

    Parameters
    ----------
    lifetime : Lifetime
    settings : mapping of str to str
        Variables of NCCL, set in the environment only while NCCL reads them.
    watcher : Watcher or None
        Polls the works in flight between calls.

    Attributes
    ----------
    graphs : Graphs
        Those of the lifetime.
    background : BackgroundCheck
    clock : StreamClock or None
        Takes the times of collectives, while an instrument wants them.
    """

    def __init__(
        self, lifetime: Lifetime, settings: Mapping[str, str], watcher: Watcher | None
    ) -> None:
        self._lifetime = lifetime
        self._streams = lifetime.streams
        self._order_check = OrderCheck(lifetime.peers)
        self._diagnosis = Diagnosis(lifetime, self._order_check)
        self.background = BackgroundCheck(lifetime, self._diagnosis, self._order_check, watcher)
        self.graphs = lifetime.graphs
        self._timeout = lifetime.peers.timeout
        self._last: int | None = None
        self._thread = concurrency.get_ident()
        self._settings = settings
        self._has_launched = False
        self.clock: StreamClock | None = None
        what = f"putting a collective on a stream of {lifetime.who}"
        self._alarm = watchdog.Alarm(what, self._timeout + LEEWAY)
        lifetime.at_end.append(self._alarm.close)

    @contextmanager
    def looking(self, what: str) -> Iterator[Look]:
        """Yield a check of the other ranks, for a call in the block that waits for them.

        The check begins a wait of the host, and raises the errors of `Diagnosis.check`.
        """
        with self._lifetime.lock:
            deadline = self._diagnosis.begin()

            def look() -> None:
                deadline.tick()
                self._diagnosis.check(deadline, what)

            try:
                yield look
            finally:
                self._diagnosis.end()

    def take_times(self, *, wanted: bool) -> None:
        """Take the times of later collectives, or of none."""
        if wanted and self.clock is None:
            graphs = self.graphs
            self.clock = StreamClock(self._streams, lambda: graphs.recording is not None)
        elif not wanted:
            self.clock = None

    def sync_stream(self) -> None:
        """Make the current stream wait for the stream that was current at the last call.

        Raises
        ------
        UsageError
            When one of the two streams is the default stream of another thread.
        """
        self._lifetime.check()
        self._streams.check_device()
        current = self._streams.current()
        if self.graphs.recording is not None:
            self.graphs.check_stream(current)
            return
        if PER_THREAD in (current, self._last) and concurrency.get_ident() != self._thread:
            # The address stands for a stream of the calling thread, so the event would be recorded
            # on a stream without the work: sums would be wrong.
            thread = concurrency.current_thread().name
            raise UsageError(
                f"thread {thread!r} called the store while CUDA's default stream of each thread is "
                f"in use, and no event orders the streams of two threads; enter 'with "
                f"cupy.cuda.Stream():' in each thread, the store's too, or unset "
                f"CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
            )
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
        with self._lifetime:
            self._lifetime.drop_complete()
            self._lifetime.kept.append((self._streams.record(self._streams.current()), objects))

    @contextmanager
    def on_comm_stream(self) -> Iterator[None]:
        """Make the communication stream current, ordered after and before the caller's stream."""
        streams, stream = self._streams, self._streams.communication
        streams.wait(stream, streams.record(streams.current()))
        try:
            with streams.on(stream):
                yield
        finally:
            streams.wait(streams.current(), streams.record(stream))

    def capture(self) -> AbstractContextManager[NcclGraph]:
        """Capture the launches of a block."""
        callbacks.refuse("capture")
        self._lifetime.check()
        return self.graphs.record(NcclGraph(self._replay))

    def _replay(self, graph: NcclGraph) -> Work:
        """Launch a captured graph."""
        callbacks.refuse("the launch of a graph")
        self._lifetime.check()
        self.graphs.refuse("the launch of a graph")
        graph.check()
        # The work in flight refers to the graph, and so to the arrays that the graph reads.
        what = f"a captured step (collectives: {len(graph.calls)})"
        return self.launch(what, lambda _, stream: graph.enqueue(stream), None, graph)

    def launch(self, what: str, enqueue: Enqueue, apply: Update | None, *kept: object) -> NcclWork:
        """Put a collective, and the kernels of `apply` after it, on the communication stream.

        An error breaks the communicator.  In a capture, a wrong call spoils the graph alone.
        """
        with self._lifetime:
            # `apply` writes arrays that it refers to: they must outlive its kernels.
            objects = (*kept, apply)
            if self.graphs.recording is not None:
                work = self._put(what, enqueue, apply, ())
                self.graphs.recording.add(work, objects)
                return work
            try:
                self._lifetime.drop_complete()
                self._order_check.submit(what)
                span = None if self.clock is None else StreamSpan(self.clock, enqueue)
                enqueue = span or enqueue
                work = self._put(what, enqueue, apply, objects)
                work.span = span
            except KVStoreError:
                raise
            except BaseException as error:
                # Ctrl-C, or an error of the caller's `apply`: the stream has a part of the work.
                cause = f"{what} was interrupted by {type(error).__name__}: {error}"
                self._lifetime.fail(CommAborted(f"{self._lifetime.who}: {cause}"))
                raise
            self._lifetime.works.append(work)
            self.background.watch()
            return work

    def _put(
        self, what: str, enqueue: Enqueue, apply: Update | None, kept: tuple[object, ...]
    ) -> NcclWork:
        """Put a collective on the stream; return its work, which keeps objects alive."""
        streams, stream = self._streams, self._streams.communication
        # The caller's stream writes the gradients: the collective must wait for it.
        ready = streams.record(streams.current())
        streams.wait(stream, ready)
        self._enqueue(what, enqueue, stream)
        if apply is not None:
            with streams.on(stream):
                callbacks.run(self._lifetime.who, apply)
        return NcclWork(self._lifetime, streams, (ready, streams.record(stream)), kept, what)

    def _enqueue(self, what: str, enqueue: Enqueue, stream: int) -> None:
        """Call the binding; its errors get this rank and the collective.

        NCCL may connect ranks in this call and wait for a missing rank: the watchdog ends that.
        """
        reads = not self._has_launched or self.graphs.recording is not None
        try:
            with self._alarm, env.temporarily(self._settings) if reads else nullcontext():
                enqueue(self._lifetime.handle, stream)
        except KVStoreError as error:
            if str(error).startswith(self._lifetime.who):  # from a check of the other ranks
                raise
            raise type(error)(f"{self._lifetime.who}: {what}: {error}") from error
        self._has_launched = True

    def synchronize(self, timeout: float | None) -> None:
        """Block until all works in flight and all work of the current stream are complete."""
        callbacks.refuse("synchronize")
        self.graphs.refuse("synchronize")
        limit = self._timeout if timeout is None else timeout
        with self._lifetime:
            streams = self._streams
            collectives = streams.record(streams.communication)
            others = streams.record(streams.current())
            deadline = self._diagnosis.begin(limit)
            while not (collectives.done() and others.done()):
                # The process may have been stopped in the pause: what is done by now is not late.
                if deadline.is_check_due() and not (collectives.done() and others.done()):
                    work = None if collectives.done() else self._oldest()
                    self._diagnosis.check(deadline, work)
            self._diagnosis.end()
            self._order_check.drain(limit)
            while self._lifetime.works:
                self._lifetime.works.popleft().release()
            self._lifetime.drop_complete()

    def _oldest(self) -> NcclWork | str:
        """Return the first collective that is not complete."""
        self._lifetime.drop_complete()
        return self._lifetime.works[0] if self._lifetime.works else "a collective"
