"""Events: a store's verbs, collectives and waits, emitted to the instruments that listen.

While nobody listens, a verb and a launch each look into an empty dict.  Only while an instrument
listens are works wrapped in an `ObservedWork`, which times the wait.  Collectives are counted
always, so an event has the same index on all ranks.  A captured step emits its launches once, at
the capture.  A wait of a GPU's stream emits no completion.

The one loop of host waits (`ncclkv.comm.messages.progress`) reports waits of at least 10 us, with
the ranks that were missing last.  Memory and messages report alike.  Late ranks are found by
`Work.arrivals`.  Each rank of a node writes into its header when it enters a collective, by the
clock of the machine.  Ranks of other nodes, ranks that exchange messages, and GPUs publish no
times.

An instrument that raises is removed, and the exception is logged: observing a store never breaks
it.  ``KeyboardInterrupt`` reaches the program.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection

from ncclkv import concurrency
from ncclkv.comm.types import Apply, Work
from ncclkv.engine.instrument import EVENTS, Instrument, Launch
from ncclkv.errors import KVStoreError
from ncclkv.table.registry import Key

_log = logging.getLogger("ncclkv")


class Events:
    """The instruments of one store.

    Attributes
    ----------
    listeners : dict of list of Instrument
        The instruments of each event, without events that no instrument observes.
    sequence : int
        Index of the last collective, counted also while no instrument listens.
    """

    def __init__(self) -> None:
        self.listeners: dict[str, list[Instrument]] = {}
        self.sequence = 0
        self._on_device: deque[tuple[int, Work]] = deque()

    def add(self, instrument: Instrument) -> None:
        """Emit later events to an instrument."""
        for event in EVENTS:
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

    # Verbs, and parts of them

    def begin(self, name: str) -> float:
        """Emit the begin of a verb, and return its time."""
        self.emit("begun", name)
        return concurrency.perf_counter()

    def end(self, name: str, begin: float) -> None:
        """Emit the end of a verb, and the times of collectives that a GPU has completed."""
        self.emit("verb", name, concurrency.perf_counter() - begin)
        self.read_device()

    def timed(self, event: str, call: Callable[[], object], *arguments: object) -> None:
        """Make a call, and emit an event with `arguments` and the seconds that the call took."""
        begin = concurrency.perf_counter()
        call()
        self.emit(event, *arguments, concurrency.perf_counter() - begin)

    def emit_with(self, work: Work, update: TimedUpdate) -> None:
        """Emit an update at the completion of its collective; on a GPU at once."""
        if isinstance(work, ObservedWork):
            work.update = update
        else:
            self.emit("updated", update.label, update.seconds)

    # Collectives

    def launch(
        self,
        start: Callable[[], Work],
        kind: str,
        label: str,
        nbytes: int,
        wire: int,
        *,
        bucket: int | None = None,
        keys: Collection[Key] = (),
        root: int | None = None,
    ) -> Work:
        """Launch the next collective, and emit its events if an instrument listens.

        Parameters
        ----------
        start : callable
        kind, label, nbytes, wire, bucket, keys, root
            As `Launch` has them.
        """
        self.sequence += 1
        if not self.listeners:
            work = start()
            work.label = label
            return work
        seq = self.sequence
        self.emit("launched", Launch(seq, kind, label, nbytes, wire, bucket, keys, root))
        launched = concurrency.perf_counter()
        work = start()
        work.label = label
        if not self.listeners:
            return work
        if work.blocks:
            return ObservedWork(self, work, launched)
        # A wait that does not block the host ends before the collective is complete.
        if "device" in self.listeners:
            self._on_device.append((seq, work))
            self.read_device()
        return work

    def read_device(self) -> None:
        """Emit the times of the collectives that a GPU has completed; does not block."""
        while self._on_device:
            seq, work = self._on_device[0]
            try:
                times = work.device_times()
            except KVStoreError:  # the next verb raises it
                self._on_device.clear()
                return
            if times is None:
                return
            self._on_device.popleft()
            if times:
                begin, end = times
                self.emit("device", seq, begin, end - begin)

    # Waits, as `ncclkv.comm.types.WaitObserver`

    def waiting(self, what: str, ranks: Collection[int]) -> None:
        self.emit("waiting", what, ranks)

    def blocked(self, what: str, ranks: Collection[int], seconds: float) -> None:
        self.emit("blocked", what, ranks, seconds)


class TimedUpdate:
    """An update of the ranges of a sum, which adds up their seconds.

    An event for each range would cost more than a short update.

    Attributes
    ----------
    label : str
    seconds : float
    """

    def __init__(self, apply: Apply, label: str) -> None:
        self._apply = apply
        self.label = label
        self.seconds = 0.0

    def __call__(self, lo: int, hi: int) -> None:
        begin = concurrency.perf_counter()
        self._apply(lo, hi)
        self.seconds += concurrency.perf_counter() - begin


class ObservedWork(Work):
    """A collective whose completion is emitted.

    Parameters
    ----------
    events : Events
    work : Work
    launched : float
        Time of the launch, of `concurrency.perf_counter`.

    Attributes
    ----------
    update : TimedUpdate or None
        Its update, until it is emitted.
    """

    update: TimedUpdate | None = None

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
        update, self.update = self.update, None
        if update is not None:
            emit("updated", update.label, update.seconds)
        times = self.arrivals() if "late" in self._events.listeners else {}
        if len(times) > 1:
            *_, before, last = sorted(times, key=times.__getitem__)
            emit("late", seq, last, times[last] - times[before])
