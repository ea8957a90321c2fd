"""Launched collectives: on a device, and on the hosts beside it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from ncclkv.comm.nccl.streams import Event
from ncclkv.comm.types import Work


class Owner(Protocol):
    """Progress of a communicator, as far as its works use it."""

    @property
    def guard(self) -> AbstractContextManager[None]:
        """A block whose failure breaks the communicator."""

    def hold_current(self, event: Event) -> None:
        """Make the current stream wait for `event`."""


class NcclWork(Work):
    """A collective on the communication stream.

    Its `wait` does not block: it makes the *current stream* wait, so that whatever the caller puts
    there next finds the result.  It may be called once for every stream that reads the result.
    A deadline has no meaning there; `Communicator.synchronize` has one.

    Parameters
    ----------
    progress : NcclProgress
    events : tuple of two Event
        After what the collective waits for on the caller's stream, and after the collective.
    kept : tuple
        What the device uses until then.
    what : str
        The collective, in words.
    """

    blocks = False

    def __init__(
        self, progress: Owner, events: tuple[Event, Event], kept: tuple[object, ...], what: str
    ) -> None:
        self._progress = progress
        self._ready: Event | None = events[0]
        self._event: Event | None = events[1]
        # CuPy would give their memory to others as soon as nobody refers to it.
        self._kept = kept
        self._what = what

    def __str__(self) -> str:
        return f"{self._what} ({self.label})" if self.label else self._what

    def complete(self) -> bool:
        """Whether the device is done with it, whatever else has happened."""
        if self._event is not None and self._event.done():
            self.release()
        return self._event is None

    def reached(self) -> bool:
        """Tell whether the device has finished; release nothing."""
        return self._event is None or self._event.done()

    def can_begin(self) -> bool:
        """Tell whether the device has done all that the caller put on its stream before."""
        return self._ready is None or self._ready.done()

    def release(self) -> None:
        """Let go of what is kept: the device is known to be done with them."""
        self._ready, self._event, self._kept = None, None, ()

    def done(self) -> bool:
        if self._event is None:
            return True
        with self._progress.guard:
            return self.complete()

    def wait(self, timeout: float | None = None) -> None:
        event = self._event  # the watcher lets go of it once it is known to be done
        if event is not None:
            with self._progress.guard:
                self._progress.hold_current(event)
