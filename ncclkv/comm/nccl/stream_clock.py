"""Stream clock: times of a GPU's stream on the clock of the host, without a wait for the GPU.

CUDA gives the time between two events of a stream.  The host's time of a first event follows from
all events: the GPU reaches none of them before the host has recorded it.  So the host's time of an
event, minus its time since the first event, is never too late, and the latest of all is taken.  The
error is the shortest time that the GPU has left an event waiting: some microseconds, once the
stream was idle at a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ncclkv import concurrency
from ncclkv.comm.nccl.binding import Handle
from ncclkv.comm.nccl.streams import Event, Streams

_LONGEST = 30.0
"""Seconds after which later times count from a later event: CUDA's are floats of 32 bits."""


class Mark(NamedTuple):
    """An event on the stream, and the host's time when it was recorded."""

    event: Event
    recorded: float


class StreamClock:
    """The clock of one communicator's stream.

    Parameters
    ----------
    streams : Streams
    captures : callable
        Returns whether a capture is recorded, in which no event may be queried.
    """

    def __init__(self, streams: Streams, captures: Callable[[], bool]) -> None:
        self._streams = streams
        self._captures = captures
        self._first: Mark | None = None
        self._begin = 0.0

    def mark(self) -> Mark:
        """Record an event after the present work of the communication stream."""
        now = concurrency.perf_counter()
        mark = Mark(self._streams.record_timed(self._streams.communication), now)
        if self._first is None:
            self._first, self._begin = mark, now
        return mark

    def times(self, begin: Mark, end: Mark) -> tuple[float, float] | None:
        """Return the host's times of two marks; None until the GPU has reached the second."""
        first = self._first
        if first is None or self._captures() or not end.event.done():
            return None
        since = [self._streams.seconds(first.event, each.event) for each in (begin, end)]
        for mark, seconds in zip((begin, end), since, strict=True):
            self._begin = max(self._begin, mark.recorded - seconds)
        found = self._begin + since[0], self._begin + since[1]
        if since[1] > _LONGEST:
            self._first, self._begin = end, found[1]
        return found


class StreamSpan:
    """A function that puts a collective on the stream, between two marks.

    Parameters
    ----------
    clock : StreamClock
    enqueue : callable
        ``enqueue(handle, stream)`` puts the collective on the stream.
    """

    def __init__(self, clock: StreamClock, enqueue: Callable[[Handle, int], None]) -> None:
        self._clock = clock
        self._enqueue = enqueue
        self._marks: tuple[Mark, Mark] | None = None

    def __call__(self, handle: Handle, stream: int) -> None:
        begin = self._clock.mark()
        self._enqueue(handle, stream)
        self._marks = begin, self._clock.mark()

    def times(self) -> tuple[float, float] | None:
        """Return the host's times of both marks, as `StreamClock.times`."""
        return None if self._marks is None else self._clock.times(*self._marks)
