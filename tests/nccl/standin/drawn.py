"""A device in a seeded world: each stream is a thread, whose turns the world draws.

The work of a stream runs at any time after its call, and a stream may run late or lose time.  Only
the order within a stream and the waits for events hold, as CUDA promises.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from ncclkv import concurrency
from ncclkv.comm.nccl.watcher import INTERVAL, Watcher
from ncclkv.testing.world_threads import active
from tests.nccl.standin.device import DEFAULT_STREAM, Device, Step
from tests.nccl.standin.handle import Handle
from tests.nccl.standin.memory import Memory
from tests.nccl.standin.operation import Operation
from tests.nccl.standin.order import Order
from tests.nccl.standin.streams import Hold, RecordingEvent

_POLL_SECONDS = 0.005
"""Seconds between two polls of a collective."""

_UNCHECKED = 0.25
"""Part of the devices on which wrong numbers alone show work without an order."""

_INTERVALS = (INTERVAL, 10 * INTERVAL, 100 * INTERVAL)
"""Seconds between two polls of a watcher; few polls let the time pass fast."""


class DrawnDevice(Device):
    """A device whose streams run by themselves, at turns that a world draws."""

    moved_by_callers = False

    def __init__(self, rank: int) -> None:
        super().__init__(rank, lazy=False, limit=math.inf)
        self.memory = Memory(self._freed, reuses=True)
        self.order = Order(checks=draw() >= _UNCHECKED)
        self._threads: dict[int, _StreamThread] = {}
        self._add_thread(DEFAULT_STREAM)

    def stream(self, name: str) -> int:
        stream = super().stream(name)
        self._add_thread(stream)
        return stream

    def _add_thread(self, stream: int) -> None:
        self._threads[stream] = _StreamThread(self, self._queues[stream])

    def end_stream(self, stream: int) -> None:
        """Free a stream, which completes the work that it has."""
        self.name(stream)
        del self._queues[stream]
        self._threads[stream].end()

    def _queued(self, stream: int) -> None:
        self._threads[stream].wake()

    def advance(self, needed: bool) -> None:
        """Let the world draw how far the streams advance."""
        concurrency.point("look at a stream")

    def reached(self) -> None:
        """Wake the streams that wait for an event."""
        for thread in [*self._threads.values()]:
            thread.recheck()

    def fail(self, error: BaseException) -> None:
        """Stop all streams: every later call raises an error."""
        self.broken = self.broken or error
        for thread in [*self._threads.values()]:
            thread.wake()

    def _block(self, stream: int) -> None:
        self._threads[stream].block(lambda queue: not queue)
        self.check()

    def finish(self, handle: Handle) -> None:
        for stream in handle.streams:
            self._threads[stream].block(lambda queue: not (queue and _runs(queue[0], handle)))

    def close(self) -> None:
        super().close()
        for thread in self._threads.values():
            thread.end(drop=True)


def _runs(step: Step, handle: Handle) -> bool:
    """Return whether a step is a collective of a communicator, and has begun."""
    return isinstance(step, Operation) and step.handle is handle and step.begun


class _StreamThread:
    """The thread of a stream, from its first work on.

    Parameters
    ----------
    device : DrawnDevice
    queue : deque of Step
    """

    def __init__(self, device: DrawnDevice, queue: deque[Step]) -> None:
        self._device, self._queue = device, queue
        self._changed = concurrency.Condition()
        self._thread: concurrency.Thread | None = None
        self._held = self._ended = False

    def wake(self) -> None:
        """Look for work."""
        if self._thread is None:
            self._thread = concurrency.Thread(target=self._run, name="a stream")
            self._thread.start()
        else:
            self._notify()

    def recheck(self) -> None:
        """Look again whether the awaited event was reached."""
        if self._held:
            self._notify()

    def end(self, *, drop: bool = False) -> None:
        """End the thread after the present work, or drop that."""
        self._ended = True
        if drop:
            self._queue.clear()
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def block(self, over: Callable[[deque[Step]], bool]) -> None:
        """Wait for a state of the queue, or for the end of the device."""
        with self._changed:
            while not over(self._queue) and self._device.broken is None:
                self._changed.wait()

    def _run(self) -> None:
        """Run the work of the stream, until the end of the stream or of the device."""
        while (step := self._next()) is not None:
            concurrency.point("run work of a stream")
            if not self._advance(step):
                concurrency.sleep(_POLL_SECONDS)

    def _next(self) -> Step | None:
        """Wait for work that may advance, and return it; None at the end."""
        with self._changed:
            while self._device.broken is None:
                step = self._queue[0] if self._queue else None
                self._held = isinstance(step, Hold) and not step.event.reached
                if step is not None and not self._held:
                    return step
                if step is None and self._ended:
                    return None
                self._changed.wait()
        return None

    def _advance(self, step: Step) -> bool:
        """Advance the first work; return whether it is complete."""
        try:
            if not step.run(needed=True):
                return False
        except Exception as error:
            self._device.fail(error)
            return False
        with self._changed:
            if self._queue:  # else the device was closed meanwhile
                self._queue.popleft()
            self._changed.notify_all()
        if isinstance(step, RecordingEvent):
            self._device.reached()
        return True


class DrawnWatcher(Watcher):
    """A watcher with a drawn interval, which leaves no function for forks of the process.

    Parameters
    ----------
    longest : float
        Seconds of the longest interval: waits in CuPy end so much later.
    """

    def __init__(self, longest: float) -> None:
        intervals = [each for each in _INTERVALS if each <= longest]
        super().__init__(intervals[int(draw() * len(intervals))])

    def _hook_forks(self) -> None:
        pass


def draw() -> float:
    """Draw a number from 0 to 1 of the world that runs."""
    return active().turns.draw()
