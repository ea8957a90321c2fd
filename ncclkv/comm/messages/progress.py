"""Progress: the collectives in flight, and the one loop in which every host wait happens."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, filterfalse
from operator import methodcaller
from typing import TypeVar

from ncclkv import concurrency
from ncclkv.comm import callbacks
from ncclkv.comm.control import CallDigest
from ncclkv.comm.diagnosis import farewells
from ncclkv.comm.diagnosis.awaited import Awaited
from ncclkv.comm.diagnosis.hang import AwaitedWork, HangDetector, Progress
from ncclkv.comm.diagnosis.mismatch import CallComparison
from ncclkv.comm.transport import PeerFailed, Request, Steps, Transport
from ncclkv.comm.types import WaitObserver, Work
from ncclkv.errors import CommAborted, KVStoreError, OrderMismatch, again
from ncclkv.tracebacks import trim

Made = TypeVar("Made", bound="HostWork")

Arrivals = Callable[[], dict[int, float]]
"""Function that returns what `Work.arrivals` does."""

# Polls before a wait also reads the clock and the notices: most waits end earlier.
_FIRST_POLLS = 20

# A short wait for one collective polls its last message so often before it advances everything.
_POLLS_PER_ADVANCE = 20
_SHORT_WAIT_POLLS = 60

_NO_THREAD = 0
"""Identity that no thread has."""

_is_done = methodcaller("done")

# Engines with collectives in flight are kept alive: MPI may still write into their messages.  Both
# tables keep an order, because a set would advance its engines in the order of their addresses.
_in_flight: dict[ProgressEngine, None] = {}

_engines: weakref.WeakValueDictionary[int, ProgressEngine] = weakref.WeakValueDictionary()
_indices = count(1)


def progress_engines() -> list[ProgressEngine]:
    """Return the engines of this process that have not failed, in the order of their creation."""
    # The references are copied at once, so no thread needs a lock that an exception could keep.
    engines = [reference() for reference in _engines.valuerefs()]
    return [each for each in engines if each is not None and each.failure is None]


def open_progress_engines(thread: int) -> list[ProgressEngine]:
    """Return the engines of a thread that have not failed."""
    return [each for each in progress_engines() if each._thread == thread]


def forget_thread(thread: int) -> None:
    """Take the engines from an ended thread: a new thread may have the same identity."""
    for each in open_progress_engines(thread):
        each._thread = _NO_THREAD


def release(wanted: Callable[[Transport], bool]) -> None:
    """Keep no longer the engines of some transports, whose messages nobody else writes into."""
    for each in list(_in_flight):
        if wanted(each.calls.transport):
            _in_flight.pop(each, None)


class ProgressEngine(Progress):
    """The collectives in flight of one communicator.

    A wait for one collective advances all collectives of its thread, in all communicators.  A peer
    may wait for another collective, and needs this rank's messages for it: else a deadlock.

    Parameters
    ----------
    transport : Transport
    timeout : float
        Seconds that a wait may take.

    Attributes
    ----------
    failure : KVStoreError or None
        The error that every later call raises.
    multi_node : bool
        Whether an awaited rank may itself wait for other ranks, by messages.
    spin_limit : int
        As `Transport.spin_limit`.
    digest : CallDigest
        Sent with every collective; a peer with another digest raises `OrderMismatch`.
    calls : CallComparison
        The calls behind the digest.
    lock : concurrency.RLock
        Held by the thread that advances the collectives, where another thread may do so too.
    observer : WaitObserver or None
        Receives the waits.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._transport = transport
        self.calls = CallComparison(transport)
        self._hang_detector = HangDetector(self.calls)
        self.digest = CallDigest()
        self._timeout = timeout
        self.spin_limit = transport.spin_limit
        self._thread = concurrency.get_ident()
        self._lent = 0  # blocks of `lend`, which end in any order
        self._active: list[HostWork] = []
        self._who = f"rank {transport.rank} of {transport.size}"
        self.failure: KVStoreError | None = None
        self.observer: WaitObserver | None = None
        self.lock = concurrency.RLock()
        _engines[next(_indices)] = self

    def siblings(self) -> list[ProgressEngine]:
        """Return the other engines of this thread that have not failed."""
        return [each for each in open_progress_engines(self._thread) if each is not self]

    def show_other_wait(
        self, description: str, names: Sequence[str], store: str = "", call_index: int = 0
    ) -> None:
        """Show to these ranks that this thread waits in another communicator; read notices."""
        self.calls.recorder.record_other_wait(description, names, store, call_index)
        with suppress(KVStoreError), self.lock:
            self._transport.left_ranks()
            self.calls.receive()

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Let other threads launch and advance collectives in a ``with`` block, under `lock`.

        Waits for them still advance the other collectives of the engine's own thread, which waits
        for the deputy that enters such a block.  An ended deputy's identity may be that of a thread
        of another rank, which must not advance this engine.
        """
        self._lent += 1
        try:
            yield
        finally:
            self._lent -= 1

    def end(self, failure: KVStoreError) -> None:
        """Raise `failure` in all later calls."""
        self.failure = self.failure or again(failure)

    def launch(self, work: Made) -> Made:
        """Start a collective, and make its first step."""
        if self.failure is not None:
            raise again(self.failure)
        work.progress, work.call = self, self.calls.recorder.log.count
        if not self._lent:
            self._thread = concurrency.get_ident()
        # Kept before its first step: MPI may still write into the messages of a failed step.
        self._active.append(work)
        _in_flight[self] = None
        self.advance(work)
        return work

    def advance(self, only: HostWork | None = None) -> None:
        """Advance a collective, or all in flight, as far as messages allow; forget complete ones.

        An error breaks the communicator.
        """
        thread = concurrency.get_ident()
        if self.failure is not None:
            raise again(self.failure)
        for work in self._active.copy() if only is None else (only,):
            if work.finished:
                continue
            try:
                # As `callbacks.run`, whose call would cost as much as the rest.
                callbacks.inside[thread] = self._who
                work.finished = work.advance()
            except (OrderMismatch, PeerFailed) as error:
                self.failure = self._hang_detector.explain(work, error)
                raise again(self.failure) from error
            except KVStoreError as error:
                self.failure = again(error)
                raise
            except BaseException as error:
                # Ctrl-C or the caller's `apply` ended the generator: it cannot be resumed.
                self.failure = CommAborted(
                    f"{self._who}: {work} was interrupted by {type(error).__name__}: {error}; "
                    f"create a new store"
                )
                raise
            finally:
                callbacks.inside.pop(thread, None)
            if work.finished:
                self._active.remove(work)
                if not self._active:
                    _in_flight.pop(self, None)

    def wait(self, work: HostWork, timeout: float | None) -> None:
        """Wait until `work` is complete; raise at the deadline, or when a needed rank has left."""
        limit = self._timeout if timeout is None else timeout
        start, attempt, polls, step = concurrency.monotonic(), 0, 0, work.step
        awaited = None if self.observer is None else Awaited(self.observer, start)
        try:
            while not work.finished:
                others = self._others()
                for other in others:
                    # The next call of that communicator raises its failure.
                    with suppress(Exception), other.lock:
                        other.advance()
                polls += 1
                attempt += 1
                self._transport.pause(attempt)
                if awaited is not None:
                    awaited.note(work, self.missing(work))
                if polls > _FIRST_POLLS:
                    self._check_wait(work, limit, concurrency.monotonic() - start)
                alone = attempt < _SHORT_WAIT_POLLS and not others and len(self._active) == 1
                left = _POLLS_PER_ADVANCE if alone else 1
                while left and work.blocked():
                    left -= 1
                    polls += 1
                    attempt += 1
                    self._transport.pause(attempt)
                self.advance()
                if work.step != step:  # the messages of the next step may be here at once
                    step, attempt = work.step, 0
        except OrderMismatch:
            raise  # the other rank of a crossing reads the wait that this rank shows
        except BaseException:
            # The program may go on in its other stores: the shown wait must prove no crossing.
            for other in self.siblings():
                other.calls.recorder.retract_other_wait()
            raise
        if awaited is not None:
            awaited.end(work)
        if work.looks.made:
            self._clear_wait()

    def _clear_wait(self) -> None:
        """Clear the wait that this rank shows; after a failed wait it stays for those who wait."""
        self.calls.recorder.clear_wait()
        for other in self.siblings():
            other.calls.recorder.clear_other_wait()

    def _check_wait(self, work: HostWork, limit: float, waited: float) -> None:
        """Raise when a wait cannot end, or has lasted too long."""
        failure = self._hang_detector.diagnose(self, work, waited)
        if failure is None and waited > limit:
            # What has arrived counts: this process itself may have been stopped until now.
            self.advance()
            if work.finished:
                return
            failure = self._hang_detector.timeout_error(work, self.missing(work), waited, limit)
        if failure is not None:
            self.failure = again(failure)
            farewells.failed(failure)
            raise failure
        self._hang_detector.report(self, work, waited, limit)

    def _others(self) -> list[ProgressEngine]:
        """Return the other engines of this thread with collectives in flight."""
        return [
            each
            # A dict is copied at once; a tuple might run the garbage collector while it is made.
            for each in _in_flight.copy()
            if each is not self and each._thread == self._thread and each.failure is None
        ]

    def obstacle(self, work: AwaitedWork) -> AwaitedWork:
        """Return `work`, or the earlier collective that it needs and that waits for other ranks."""
        rank = self._transport.rank
        if rank not in work.missing():
            return work
        return next((each for each in self._active if rank not in each.missing()), work)


class HostWork(Work, AwaitedWork):
    """A collective of hosts, which advances only during calls of this package.

    Attributes
    ----------
    what : object
        Its ``str`` describes the collective in messages.
    progress : ProgressEngine
        Set at the launch.
    finished : bool
        Whether it is complete on this rank.
    step : int
        Count of steps made, of which each waits for messages.
    looks, reported, call
        As `AwaitedWork` has them.
    """

    what: object
    progress: ProgressEngine
    step: int = 0

    def __str__(self) -> str:
        return f"{self.what} ({self.label})" if self.label else str(self.what)

    @abstractmethod
    def advance(self) -> bool:
        """Advance as far as possible without waiting; return whether it is complete."""

    @abstractmethod
    def blocked(self) -> bool:
        """Return whether a poll shows that it cannot advance."""

    def done(self) -> bool:
        try:
            if callbacks.inside:
                callbacks.refuse("Work.done")
            if not self.finished:
                self.progress.advance()
            return self.finished
        except Exception as error:
            trim(error)
            raise

    def wait(self, timeout: float | None = None) -> None:
        try:
            if callbacks.inside:
                # Also a complete one: an error that depends on the time would be found late.
                callbacks.refuse("Work.wait")
            if not self.finished:
                self.progress.advance()
            if not self.finished or self.looks.made:
                self.progress.wait(self, timeout)
        except Exception as error:
            trim(error)
            raise


class StepWork(HostWork):
    """A collective that is a generator of its steps."""

    def __init__(self, steps: Steps, what: object, arrivals: Arrivals = dict) -> None:
        self.what = what
        self._steps = steps
        self._arrivals = arrivals
        self._pending: list[Request] = []

    def arrivals(self) -> dict[int, float]:
        return self._arrivals()

    def advance(self) -> bool:
        if len(self._pending) == 1 and not self._pending[0].poll():
            return False
        while True:
            try:
                self._pending = list(filterfalse(_is_done, self._pending))
                if self._pending:
                    return False
                self._pending = list(next(self._steps))
                self.step += 1
            except StopIteration:
                return True
            except OrderMismatch as error:
                self._steps.throw(error)

    def blocked(self) -> bool:
        return bool(self._pending) and not self._pending[-1].poll()

    def missing(self) -> set[int]:
        return {rank for message in self._pending for rank in message.awaited()}
