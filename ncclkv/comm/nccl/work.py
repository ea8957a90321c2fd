"""Work: a launched collective on the communication stream."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from ncclkv.comm.nccl.streams import Event
from ncclkv.comm.types import Work


class Owner(Protocol):
    """Progress of a communicator, as far as its works use it."""

    @property
    def guard(self) -> AbstractContextManager[None]:
        """Context manager of a block whose failure breaks the communicator."""

    def hold_current(self, event: Event) -> None:
        """Make the current stream wait for `event`."""


class NcclWork(Work):
    """Collective on the communication stream.

    `wait` does not block: it makes the *current stream* wait, so later work on that stream reads
    the result.  Call `wait` once for each stream that reads the result.  The timeout is
    ignored; `Communicator.synchronize` has a deadline.

    Parameters
    ----------
    progress : NcclProgress
    events : tuple of two Event
        Recorded after the caller's earlier work, and after the collective.
    kept : tuple
        Objects that the device uses until the second event.
    what : str
        Description of the collective, for messages.
    """

    blocks = False

    def __init__(
        self, progress: Owner, events: tuple[Event, Event], kept: tuple[object, ...], what: str
    ) -> None:
        self._progress = progress
        self._ready: Event | None = events[0]
        self._event: Event | None = events[1]
        # CuPy reuses memory as soon as its array is unreferenced, even if the device still reads.
        self._kept = kept
        self._what = what

    def __str__(self) -> str:
        return f"{self._what} ({self.label})" if self.label else self._what

    def complete(self) -> bool:
        """Return whether the device has completed the collective, and release it then."""
        if self._event is not None and self._event.done():
            self.release()
        return self._event is None

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
        with self._progress.guard:
            return self.complete()

    def wait(self, timeout: float | None = None) -> None:
        event = self._event  # the watcher may release it meanwhile
        if event is not None:
            with self._progress.guard:
                self._progress.hold_current(event)
