"""Work: a launched collective on the communication stream."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ncclkv.comm.nccl.stream_clock import StreamSpan
from ncclkv.comm.nccl.streams import Event, Streams
from ncclkv.comm.types import Work
from ncclkv.tracebacks import trim


class NcclWork(Work):
    """Collective on the communication stream.

    `wait` does not block: it makes the *current stream* wait, so later work on that stream reads
    the result.  Call `wait` once for each stream that reads the result.  The timeout is
    ignored; `Communicator.synchronize` has a deadline.

    Parameters
    ----------
    guard : context manager
        Encloses each call: an error inside breaks the communicator.
    streams : Streams
    events : tuple of two Event
        Recorded after the caller's earlier work, and after the collective.
    kept : tuple
        Objects that the device uses until the second event.
    what : str
        Description of the collective, for messages.

    Attributes
    ----------
    span : StreamSpan or None
        Has the times of the collective, if they are taken.
    """

    blocks = False

    def __init__(
        self,
        guard: AbstractContextManager[None],
        streams: Streams,
        events: tuple[Event, Event],
        kept: tuple[object, ...],
        what: str,
    ) -> None:
        self._guard = guard
        self._streams = streams
        self._ready: Event | None = events[0]
        self._event: Event | None = events[1]
        # CuPy reuses memory as soon as its array is unreferenced, even if the device still reads.
        self._kept = kept
        self._what = what
        self.span: StreamSpan | None = None

    def __str__(self) -> str:
        return f"{self._what} ({self.label})" if self.label else self._what

    def reached(self) -> bool:
        """Return whether the device has completed the collective; release nothing."""
        return self._event is None or self._event.done()

    def can_begin(self) -> bool:
        """Return whether the device has completed the caller's earlier work."""
        return self._ready is None or self._ready.done()

    def release(self) -> None:
        """Release the kept objects: the device has completed the collective."""
        self._ready, self._event, self._kept = None, None, ()

    def done(self) -> bool:
        if self._event is None:
            return True
        try:
            with self._guard:
                if self.reached():
                    self.release()
                return self._event is None
        except Exception as error:
            trim(error)
            raise

    def device_times(self) -> tuple[float, float] | tuple[()] | None:
        if self.span is None:
            return ()
        with self._guard:
            return self.span.times()

    def wait(self, timeout: float | None = None) -> None:
        event = self._event  # the watcher may release it meanwhile
        if event is not None:
            try:
                with self._guard:
                    self._streams.wait(self._streams.current(), event)
            except Exception as error:
                trim(error)
                raise
