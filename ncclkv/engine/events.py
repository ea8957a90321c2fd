"""Events: a store's verbs and collectives, emitted to the instruments that listen."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ncclkv import concurrency
from ncclkv.comm.types import Work

_log = logging.getLogger("ncclkv")


class Instrument:
    """Receives events of one rank's store; a subclass overrides the methods of events it observes.

    Methods run inside the verb that they observe, so they call no verb.  An instrument that raises
    an exception is removed, and the exception is logged.

    The collectives of a store's buckets are numbered from 1, equally on all ranks.
    """

    def verb(self, name: str, seconds: float) -> None:
        """Observe that a verb has returned, or raised an exception, after `seconds`."""

    def launched(self, seq: int, label: str, nbytes: int, wire: int) -> None:
        """Observe the launch of a collective.

        Parameters
        ----------
        seq : int
        label : str
            Names of its keys, as in error texts.
        nbytes : int
            Bytes of the array that is reduced or broadcast; slots are padded to 256 bytes.
        wire : int
            Bytes of a reduction that this rank sends, as `Collective.wire_bytes`; 0 of a broadcast.
        """

    def completed(self, seq: int, seconds: float) -> None:
        """Observe that a host wait has completed a collective, `seconds` after its launch."""

    def waited(self, seq: int, seconds: float) -> None:
        """Observe the end of the host's wait for a collective, which took `seconds`."""

    def late(self, seq: int, rank: int, seconds: float) -> None:
        """Observe the rank of the node that entered a sum last; emitted after each host wait.

        All ranks that wait for each other in shared memory receive the same rank and time.

        Parameters
        ----------
        seq : int
        rank : int
            The last rank; this rank or another.
        seconds : float
            Time between the entries of the last two ranks.
        """


_EVENTS = ("verb", "launched", "completed", "waited", "late")


class Events:
    """The instruments of one store.

    Attributes
    ----------
    listeners : dict of list of Instrument
        The instruments of each event, without events that no instrument observes.
    sequence : int
        Number of the last collective, counted also while no instrument listens.
    """

    def __init__(self) -> None:
        self.listeners: dict[str, list[Instrument]] = {}
        self.sequence = 0

    def add(self, instrument: Instrument) -> None:
        """Emit later events to an instrument."""
        for event in _EVENTS:
            if getattr(type(instrument), event) is not getattr(Instrument, event):
                self.listeners.setdefault(event, []).append(instrument)

    def remove(self, instrument: Instrument) -> None:
        """Emit no later event to an instrument."""
        for event, instruments in list(self.listeners.items()):
            instruments[:] = [each for each in instruments if each is not instrument]
            if not instruments:
                del self.listeners[event]

    def emit(self, event: str, *arguments: object) -> None:
        """Call the method `event` of the instruments that override it."""
        for instrument in self.listeners.get(event, []).copy():
            try:
                getattr(instrument, event)(*arguments)
            except Exception:
                self.remove(instrument)
                _log.exception("the instrument %r raised in %s, and was removed", instrument, event)

    def launch(self, start: Callable[[], Work], label: str, nbytes: int, wire: int) -> Work:
        """Launch the next collective, and emit its events if an instrument listens."""
        self.sequence += 1
        if not self.listeners:
            work = start()
            work.label = label
            return work
        self.emit("launched", self.sequence, label, nbytes, wire)
        launched = concurrency.perf_counter()
        work = start()
        work.label = label
        # A wait that does not block the host ends before the collective is complete.
        observed = self.listeners and work.blocks
        return ObservedWork(self, work, launched) if observed else work


class ObservedWork(Work):
    """A collective whose completion is emitted.

    Parameters
    ----------
    events : Events
    work : Work
    launched : float
        Time of the launch, of `concurrency.perf_counter`.
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
        emit, seq, begin = self._events.emit, self._seq, concurrency.perf_counter()
        self._work.wait(timeout)
        end = concurrency.perf_counter()
        emit("waited", seq, end - begin)
        emit("completed", seq, end - self._launched)
        times = self.arrivals() if "late" in self._events.listeners else {}
        if len(times) > 1:
            *_, before, last = sorted(times, key=times.__getitem__)
            emit("late", seq, last, times[last] - times[before])
