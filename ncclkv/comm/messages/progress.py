"""Progress: the collectives in flight, and the one loop in which every host wait happens."""

from __future__ import annotations

import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import TypeVar

from ncclkv.comm.control import CallDigest
from ncclkv.comm.diagnosis.hang import AwaitedWork, HangDetector
from ncclkv.comm.diagnosis.mismatch import CallComparison
from ncclkv.comm.host import finalize
from ncclkv.comm.transport import PeerFailed, Request, Transport
from ncclkv.comm.types import Work
from ncclkv.errors import CommAborted, KVStoreError, OrderMismatch, again

Made = TypeVar("Made", bound="HostWork")

Steps = Generator[Sequence[Request], None, None]
"""A collective as a generator: it goes on when all messages that it yielded are done.

What goes wrong with one of them is thrown in there.
"""

# Looks before the clock and the departed ranks are looked at: what is about to arrive is not made
# to pay for either.
_FREE_LOOKS = 20

# Glances between two looks at all there is, when nothing else is under way and the wait is young: a
# long one does not hurry, and is to be told in time of deadlines and losses.
_GLANCES = 20
_YOUNG = 60

_busy: set[ProgressEngine] = set()  # kept though forgotten: messages may still be written to

_flights: weakref.WeakSet[ProgressEngine] = weakref.WeakSet()
_flights_change = threading.Lock()


def open_flights(thread: int) -> list[ProgressEngine]:
    """Return the flights of a thread that have not failed."""
    with _flights_change:
        flights = list(_flights)
    return [each for each in flights if each._thread == thread and each.failure is None]


class ProgressEngine:
    """The collectives in flight of one communicator.

    Waiting for one advances all of this thread, those of other communicators too: a peer may wait
    for another one than we do, and its messages must be answered all the same.

    Attributes
    ----------
    failure : KVStoreError or None
        What is raised by every later call.
    multi_node : bool
        Whether a rank that is waited for may itself wait for others, by messages.
    spin_limit : int
        The transport's.
    mark : Mark
        Digest sent with every collective; a peer with another digest raises `OrderMismatch`.
    calls : Calls
        What is known of the calls that it stands for.
    lock : RLock
        Held by who advances it, where another thread may do so, too.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._transport = transport
        self.calls = CallComparison(transport)
        self._hang_detector = HangDetector(transport, self.calls)
        self.mark = CallDigest()
        self._timeout = timeout
        self.spin_limit = transport.spin_limit
        self._thread = threading.get_ident()
        self._active: list[HostWork] = []
        self.failure: KVStoreError | None = None
        self.multi_node = False
        self.lock = threading.RLock()
        with _flights_change:
            _flights.add(self)

    def siblings(self) -> list[ProgressEngine]:
        """The other flights of this thread that have not failed."""
        return [flight for flight in open_flights(self._thread) if flight is not self]

    def wait_elsewhere(self, words: str, names: Sequence[str]) -> None:
        """Tell the ranks of this flight that its thread waits in another; hear what they tell."""
        self.calls.recorder.record_other_wait(words, names)
        with suppress(KVStoreError), self.lock:
            self._transport.left_ranks()
            self.calls.receive()

    def end(self, failure: KVStoreError) -> None:
        """Raise `failure` in all later calls."""
        self.failure = self.failure or again(failure)

    def launch(self, work: Made) -> Made:
        """Start a collective; it makes its first step here."""
        self.check()
        work.flight = self
        if work.eager and not self._active and self._is_done_soon(work):
            return work
        self._thread = threading.get_ident()
        # Kept before its first step: messages of a step that fails may still be written to.
        self._active.append(work)
        _busy.add(self)
        self._advance(work)
        return work

    def check(self) -> None:
        """Raise again what has gone wrong before."""
        if self.failure is not None:
            raise again(self.failure)

    def progress(self) -> None:
        """Advance every collective in flight as far as its messages allow."""
        self.check()
        for work in self._active.copy():
            if not work.finished:
                self._advance(work)

    def _is_done_soon(self, work: HostWork) -> bool:
        """Give a collective a moment: one that is over then needs no more to be thought of."""
        self._step(work)
        for attempt in range(self.spin_limit):
            if work.finished:
                break
            self._transport.pause(attempt)
            if not work.blocked():
                self._step(work)
        return work.finished

    def _advance(self, work: HostWork) -> None:
        """Advance a collective; forget it when it is complete."""
        self._step(work)
        if work.finished:
            self._active.remove(work)
            if not self._active:
                _busy.discard(self)

    def _step(self, work: HostWork) -> None:
        """Let a collective go on; what goes wrong breaks the flight."""
        try:
            work.finished = work.advance()
        except (OrderMismatch, PeerFailed) as error:
            self.failure = self._hang_detector.explain(work, error)
            raise again(self.failure) from error
        except KVStoreError as error:
            self.failure = again(error)
            raise
        except BaseException as error:
            # Ctrl-C, or an `apply` of the caller's; the collective has lost its place.
            self.failure = CommAborted(
                f"rank {self._transport.rank} of {self._transport.size}: a collective was broken "
                f"off by {type(error).__name__}: {error}"
            )
            raise

    def wait(self, work: HostWork, timeout: float | None) -> None:
        """Look, and let others run, until `work` is complete; mind the deadline and losses."""
        self._wait(work, timeout)
        if work.reports_requested:
            # Of a wait in vain it stays known: ranks that wait for this one look for it.
            self.calls.recorder.clear_wait()
            for other in self.siblings():
                other.calls.recorder.clear_other_wait()

    def _wait(self, work: HostWork, timeout: float | None) -> None:
        """The same, but for what is told of a long wait."""
        limit = self._timeout if timeout is None else timeout
        start, attempt = time.monotonic(), 0
        while True:
            others = self._others()
            hurry = attempt < _YOUNG and not others and len(self._active) == 1
            glances = _GLANCES if hurry else 1
            while glances and work.blocked():
                glances -= 1
                attempt += 1
                self._transport.pause(attempt)
            self.progress()
            if work.finished:
                return
            for other in others:
                # What fails there is raised by the next call there.
                with suppress(Exception), other.lock:
                    other.progress()
            attempt += 1
            self._transport.pause(attempt)
            if attempt > _FREE_LOOKS:
                self._look_around(work, limit, time.monotonic() - start)

    def _look_around(self, work: HostWork, limit: float, waited: float) -> None:
        """Raise when a wait is in vain, or has lasted too long."""
        failure = self._hang_detector.diagnose(self, work, waited)
        if failure is None and waited > limit:
            failure = self._hang_detector.timeout_error(work, self.missing(work), waited, limit)
        if failure is not None:
            self.failure = again(failure)
            finalize.failed(failure)
            raise failure
        self._hang_detector.report(self, work, waited, limit)

    def _others(self) -> list[ProgressEngine]:
        """The other flights of this thread that can be advanced."""
        return [
            flight
            # A copy is made at once, where a tuple may let the garbage be collected in between.
            for flight in _busy.copy()
            if flight is not self and flight._thread == self._thread and flight.failure is None
        ]

    def missing(self, work: AwaitedWork) -> set[int]:
        """The ranks that `work` waits for; if it waits for an earlier one, those of the first."""
        missing, here = work.missing(), self._transport.rank
        if here not in missing:
            return missing
        each = (other.missing() for other in self._active)
        return next((ranks for ranks in each if here not in ranks), missing)


class HostWork(Work):
    """A collective of hosts, which advances whenever somebody looks.

    Attributes
    ----------
    flight : Flight
        What it is launched in.
    finished : bool
        Whether it is complete on this rank.
    eager : bool
        True when it completes soon after all ranks have launched it, and waits for no message.
    reports_requested, reported : int
        How often others' calls have been looked at for it, and a line on stderr was due.
    """

    flight: ProgressEngine
    finished = False
    eager = False
    reports_requested = reported = 0

    def __init__(self, what: object) -> None:
        self._what = what

    def __str__(self) -> str:
        return f"{self._what} ({self.label})" if self.label else str(self._what)

    @abstractmethod
    def advance(self) -> bool:
        """Go on as far as can be without waiting; tell whether nothing is left to do."""

    @abstractmethod
    def blocked(self) -> bool:
        """Return whether a poll shows that it cannot go on."""

    @abstractmethod
    def missing(self) -> set[int]:
        """The ranks that it waits for."""

    def done(self) -> bool:
        if not self.finished:
            self.flight.progress()
        return self.finished

    def wait(self, timeout: float | None = None) -> None:
        if not self.finished:
            self.flight.wait(self, timeout)


class StepWork(HostWork):
    """A collective that is a generator of its steps."""

    def __init__(self, steps: Steps, what: object) -> None:
        super().__init__(what)
        self._steps = steps
        self._pending: list[Request] = []

    def advance(self) -> bool:
        while True:
            try:
                self._pending = [message for message in self._pending if not message.done()]
                if self._pending:
                    return False
                self._pending = list(next(self._steps))
            except StopIteration:
                return True
            except OrderMismatch as error:
                self._steps.throw(error)

    def blocked(self) -> bool:
        return bool(self._pending) and not self._pending[-1].poll()

    def missing(self) -> set[int]:
        return {message.peer for message in self._pending}
