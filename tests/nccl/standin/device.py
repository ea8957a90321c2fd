"""The device of one rank: its streams, their queued work, and the time when it runs.

The device has no thread, except in a seeded world (`drawn`). The device advances when the host
waits in this thread, or queries an event. In *prompt* mode it advances at every other call, too. In
*lazy* mode a launched collective begins at such a call, its outputs are poisoned, and it does not
continue before the host waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from ncclkv import concurrency
from ncclkv.comm import callbacks
from ncclkv.comm.messages.progress import ProgressEngine, StepWork
from ncclkv.comm.transport import Request, Steps
from ncclkv.errors import CommAborted, CommTimeout
from tests.nccl.standin.capture import Capture, Node, RecordedGraph
from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.log import CallLog
from tests.nccl.standin.memory import Allocation, Memory
from tests.nccl.standin.no_fallback import NoFallback
from tests.nccl.standin.order import HOST, Order, Span

DEFAULT_STREAM = 0


class Step(Protocol):
    """A piece of work on a stream."""

    what: str

    def run(self, needed: bool) -> bool:
        """Advance as far as possible, with `needed` to the end; return whether that is reached."""


class Function:
    """Work that is done in one step."""

    def __init__(self, what: str, run: Callable[[], object]) -> None:
        self.what = what
        self._run = run

    def run(self, needed: bool) -> bool:
        self._run()
        return True


class Device:
    """Streams, memory and their order.

    Parameters
    ----------
    rank : int
        Rank in error texts.
    lazy : bool
        Whether collectives stay incomplete as long as NCCL allows.
    limit : float
        Seconds after which a wait for a stream fails.

    Attributes
    ----------
    moved_by_callers : bool
        Whether the threads that make calls also advance the streams.
    frozen : bool
        Whether no work completes, so that the calls do not depend on the device's progress.
    capture : Capture or None
        Capture in progress.
    room : int or None
        Bytes of the device's memory, used or free; None for no limit.
    """

    moved_by_callers = True

    def __init__(self, rank: int, lazy: bool, limit: float) -> None:
        self.rank = rank
        self.lazy = lazy
        self.limit = limit
        self.log = CallLog()
        self.memory = Memory(self._freed)
        self.order = Order()
        self._current: dict[int, int] = {}
        self.broken: BaseException | None = None
        self.frozen = False
        self.room: int | None = None
        self.capture: Capture | None = None
        self._graphs = 0
        self._queues: dict[int, deque[Step]] = {DEFAULT_STREAM: deque()}
        self._names = {DEFAULT_STREAM: "the default stream"}
        self._moving = concurrency.Lock()
        self._held = False
        self._progress = self._new_progress()

    @property
    def current(self) -> int:
        """The calling thread's current stream."""
        return self._current.get(concurrency.get_ident(), DEFAULT_STREAM)

    @current.setter
    def current(self, stream: int) -> None:
        self._current[concurrency.get_ident()] = stream

    def stream(self, name: str) -> int:
        """Return a new stream."""
        stream = 0x5000 + 0x10 * len(self._names)
        self._names[stream] = name
        self._queues[stream] = deque()
        return stream

    def end_stream(self, stream: int) -> None:
        """Free a stream, whose work must be complete."""
        self.advance(needed=True)
        if left := self.unfinished(stream):
            raise RefusedByStandIn(f"{self.name(stream)} was freed while it had to do: {left}")
        del self._queues[stream]

    def name(self, stream: int) -> str:
        """Return a stream's name in messages and in the log."""
        if stream not in self._queues:
            raise RefusedByStandIn(f"stream {stream:#x} does not exist, or not any more")
        return self._names[stream]

    def _new_progress(self) -> ProgressEngine:
        """Return the progress engine that lets every wait of this thread advance the device."""
        return ProgressEngine(NoFallback(self.rank), self.limit)  # type: ignore[arg-type]

    def lend(self) -> AbstractContextManager[None]:
        """Let other threads use the device within a ``with`` block, one at a time."""
        return self._progress.lend()

    def leave(self, nbytes: int | None) -> None:
        """Set the free memory in bytes; None sets no limit."""
        self.room = None if nbytes is None else self.memory.used() + nbytes

    def left(self) -> int | None:
        """Return the bytes that may still be allocated; None for no limit."""
        return None if self.room is None else self.room - self.memory.used()

    def mend(self) -> None:
        """Continue after a fault that a test has made on purpose."""
        self._progress.end(CommAborted("the stand-in was broken"))
        self._progress, self._held, self.broken = self._new_progress(), False, None
        self.drop_capture()

    def check(self) -> None:
        """Raise the error of an earlier call again."""
        if self.broken is not None:
            raise RefusedByStandIn(f"rank {self.rank}: {self.broken}") from self.broken

    def put(
        self,
        stream: int,
        what: str,
        make: Callable[[], Step],
        spans: Sequence[Span],
        handle: Handle | None = None,
    ) -> None:
        """Enqueue the step made by `make`; on a captured stream, record it."""
        self.check()
        if self.capture is not None and self.capture.takes(stream):
            self.capture.add(stream, Node(what, make, spans, handle))
        else:
            self.enqueue(stream, make(), spans)

    def begin_capture(self, stream: int) -> None:
        """Begin to record a stream's work."""
        self.check()
        if stream == DEFAULT_STREAM:
            raise RefusedByStandIn("the default stream, 0, cannot be captured")
        self.refuse("the begin of a capture")
        self.log.add(f"begin to capture {self.name(stream)}")
        self.capture = Capture(self, stream)

    def end_capture(self) -> RecordedGraph:
        """End the capture, even if it is empty, and return its graph."""
        capture, self.capture = self.capture, None
        if capture is None:
            raise RefusedByStandIn("the end of a capture that never began")
        self.check()
        nodes = capture.end()
        self._graphs += 1
        graph = RecordedGraph(self, f"graph {self._graphs}", nodes)
        self.log.add(f"end the capture: {graph.name} of {len(nodes)} nodes")
        return graph

    def drop_capture(self) -> None:
        """End a capture, and drop its work."""
        capture, self.capture = self.capture, None
        if capture is not None:
            capture.drop()

    def refuse(self, what: str) -> None:
        """Refuse a call that this thread may not make while it captures."""
        if self.capture is not None:
            raise RefusedByStandIn(f"{what} inside a capture, which that spoils")

    def enqueue(self, stream: int, step: Step, spans: Sequence[Span] = ()) -> None:
        """Put work that uses `spans` at the end of a stream."""
        concurrency.point("queue work on a stream")
        self.check()
        what = f"{step.what} on {self.name(stream)}"
        self.order.access(stream, spans, what)
        self._queues[stream].append(step)
        self._queued(stream)

    def _queued(self, stream: int) -> None:
        """Advance after new work."""
        self.advance(needed=not self.lazy)
        self._hold()

    def _hold(self) -> None:
        """Let every wait of this thread advance the device until all streams are empty."""
        if not self._held and any(self._queues.values()):
            self._held = True
            with _outside_callbacks():
                self._progress.launch(StepWork(_once(_Rest(self)), "work on a device"))

    def released(self) -> bool:
        """Return whether all work is complete; `_hold` reads the recorded result."""
        self._held = any(self._queues.values())
        return not self._held

    def advance(self, needed: bool) -> None:
        """Run all work that can run now."""
        if self.frozen or self.broken is not None:
            return
        # A collective's messages may be awaited inside, which calls this method again.
        if not self._moving.acquire(blocking=False):
            return
        try:
            with _outside_callbacks():
                while sum([self._move(queue, needed) for queue in self._queues.values() if queue]):
                    pass  # completed work of one stream may unblock another
        except BaseException as error:
            self.broken = error
            raise
        finally:
            self._moving.release()

    def _move(self, queue: deque[Step], needed: bool) -> int:
        """Run the first work of a stream; return the count of completed steps."""
        before = len(queue)
        while queue and queue[0].run(needed):
            queue.popleft()
        return before - len(queue)

    def unfinished(self, stream: int) -> str:
        """Return a text of the work that waits on a stream."""
        return ", ".join(step.what for step in self._queues[stream])

    def drain(self, stream: int) -> None:
        """Block the host until a stream is empty."""
        self.check()
        self.refuse(f"a wait of the host for {self.name(stream)}")
        clock = self.order.clock(stream)
        self._block(stream)
        self.order.join(HOST, clock)

    def _block(self, stream: int) -> None:
        """Return when a stream is empty."""
        done = _Until(self, lambda: not self._queues[stream])
        if not done.done():
            try:
                self._progress.launch(StepWork(_once(done), self.name(stream))).wait(self.limit)
            except CommTimeout:
                self.broken = RefusedByStandIn(
                    f"waited {self.limit:g} s for {self.name(stream)}, which still has to do: "
                    f"{self.unfinished(stream)}"
                )
                self.check()

    def finish(self, handle: Handle) -> None:
        """Return when nothing of an aborted communicator runs any more."""
        self.advance(needed=True)

    def _freed(self, allocation: Allocation) -> None:
        """Check that no queued work uses memory that is about to be freed."""
        early = self.order.unordered(allocation)
        if early and self.broken is None:
            old = early[-1]
            self.broken = RefusedByStandIn(
                f"{allocation.name} was freed while {old.what}, which {old.span}, was not known "
                f"to be done; keep the array until the event after it is"
            )

    def close(self) -> None:
        """Drop the queued work."""
        self._progress.end(CommAborted("the stand-in is closed"))
        for queue in self._queues.values():
            queue.clear()
        self.released()


@contextmanager
def _outside_callbacks() -> Iterator[None]:
    """Run a block as if this thread were in no callback.

    The device has communicators of its own, and runs also while this thread is in a callback.
    """
    thread = concurrency.get_ident()
    callback = callbacks.inside.pop(thread, None)
    try:
        yield
    finally:
        if callback is not None:
            callbacks.inside[thread] = callback


def _once(what: Request) -> Steps:
    """Return a collective of one step."""
    yield [what]


class _Until(Request):
    """An awaited condition of the host, in the form of a message of `ProgressEngine`."""

    peer = -1

    def __init__(self, device: Device, reached: Callable[[], bool]) -> None:
        self._device = device
        self._reached = reached

    def done(self) -> bool:
        self._device.advance(needed=True)
        self._device.check()
        return self._reached()


class _Rest(Request):
    """All queued work; its first poll, at the launch, is no wait."""

    peer = -1

    def __init__(self, device: Device) -> None:
        self._device = device
        self._looks = 0

    def done(self) -> bool:
        self._looks += 1
        self._device.advance(needed=self._looks > 1 or not self._device.lazy)
        return self._device.released()
