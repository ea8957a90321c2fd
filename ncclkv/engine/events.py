"""Events: a store's verbs and collectives, emitted to the instruments that listen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from ncclkv.comm.types import Work

_log = logging.getLogger("ncclkv")


class Instrument:
    """Receives events of one rank's store; a subclass overrides the methods of those it wants.

    Methods run inside the verb that they observe, so they call no verb.  An instrument that raises
    an exception is removed, and the exception is logged.

    The collectives of a store's buckets are numbered from 1, equally on all ranks.
    """

    def verb(self, name: str, seconds: float) -> None:
        """Note that a verb has returned, or raised, after `seconds`."""

    def launched(self, seq: int, label: str, nbytes: int, wire: int) -> None:
        """Note that a collective begins.

        Parameters
        ----------
        seq : int
        label : str
            Its keys, as in errors.
        nbytes : int
            Bytes of the array that is reduced or broadcast; slots are padded to 256 bytes.
        wire : int
            Bytes that this rank sends in messages; 0 where that is unknown.
        """

    def completed(self, seq: int, seconds: float) -> None:
        """Note that a wait on the host has completed a collective, `seconds` after its launch."""

    def waited(self, seq: int, seconds: float) -> None:
        """Note that the host has waited for a collective."""

    def late(self, seq: int, rank: int, seconds: float) -> None:
        """Note which rank of the node was the last in a sum, so many seconds after the others.

        All ranks that wait for each other in shared memory receive the same rank and time.
        """


_EVENTS = ("verb", "launched", "completed", "waited", "late")


class Events:
    """The instruments of one store.

    Attributes
    ----------
    heard : dict of list of Instrument
        The instruments by event, without events that no instrument wants.
    sequence : int
        Number of the last collective, counted also while nobody listens.
    """

    def __init__(self) -> None:
        self.heard: dict[str, list[Instrument]] = {}
        self.sequence = 0

    def add(self, instrument: Instrument) -> None:
        """Send the events from now on to an instrument."""
        for event in _EVENTS:
            if getattr(type(instrument), event) is not getattr(Instrument, event):
                self.heard.setdefault(event, []).append(instrument)

    def remove(self, instrument: Instrument) -> None:
        """Send an instrument no more events."""
        for event, listeners in list(self.heard.items()):
            listeners[:] = [each for each in listeners if each is not instrument]
            if not listeners:
                del self.heard[event]

    def emit(self, event: str, *arguments: object) -> None:
        """Call the method `event` of the instruments that override it."""
        for instrument in self.heard.get(event, []).copy():
            try:
                getattr(instrument, event)(*arguments)
            except Exception:
                self.remove(instrument)
                _log.exception("the instrument %r raised in %s, and was removed", instrument, event)

    def launch(self, start: Callable[[], Work], label: str, nbytes: int, wire: int) -> Work:
        """Launch the collective numbered `sequence`, and emit its events."""
        self.emit("launched", self.sequence, label, nbytes, wire)
        launched = perf_counter()
        work = start()
        work.label = label
        # A wait that does not block the host ends before the collective is complete.
        observed = self.heard and work.blocks
        return ObservedWork(self, work, launched) if observed else work


class ObservedWork(Work):
    """A collective whose completion is emitted.

    Parameters
    ----------
    events : Events
    work : Work
    launched : float
        Time of the launch, of `time.perf_counter`.
    """

    def __init__(self, events: Events, work: Work, launched: float) -> None:
        self._events = events
        self._work = work
        self._seq = events.sequence
        self._launched = launched
        self.label = work.label

    def done(self) -> bool:
        return self._work.done()

    def arrivals(self) -> dict[int, float]:
        return self._work.arrivals()

    def wait(self, timeout: float | None = None) -> None:
        emit, seq, begin = self._events.emit, self._seq, perf_counter()
        self._work.wait(timeout)
        end = perf_counter()
        emit("waited", seq, end - begin)
        emit("completed", seq, end - self._launched)
        times = self.arrivals() if "late" in self._events.heard else {}
        if len(times) > 1:
            *_, before, last = sorted(times, key=times.__getitem__)
            emit("late", seq, last, times[last] - times[before])
