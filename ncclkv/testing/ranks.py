"""Ranks that are threads of the system, and their end by Ctrl-C."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

from ncclkv import concurrency
from ncclkv.comm.host import threads
from ncclkv.comm.host.communicator import HostCommunicator
from ncclkv.errors import annotate
from ncclkv.testing.program import first_error, run_as_rank

Result = TypeVar("Result")

# Seconds for ranks in calls of stores to end by the calls' errors, and then for the others to end
# by an exception between two of their own instructions.
_CALL_SECONDS = 0.2
_PROGRAM_SECONDS = 0.7

# Seconds of a wait between two instructions: only then an exception of `_Rank.interrupt` is raised.
_POLL_SECONDS = 0.05


def run_threads(size: int, body: Callable[[], Result], timeout: float) -> list[Result]:
    """Run a function on the threads of a new group; return the results, or raise an error."""
    made = threads.communicators(size, timeout)
    ranks = [_Rank(rank, each, body) for rank, each in enumerate(made)]
    try:
        for rank in ranks:
            rank.start()
        _wait(ranks)
        for rank in ranks:
            rank.join()
    except BaseException as stop:  # Ctrl-C, or the exception of another signal handler
        failed = _first(ranks)
        _stop(ranks, stop)
        if failed is not None:
            stop.__cause__ = failed
        raise
    finally:
        if not any(rank.running for rank in ranks):
            threads.release(made)
    failed = _first(ranks)
    if failed is not None:
        raise failed
    return [rank.result for rank in ranks]


class _Rank(concurrency.Thread, Generic[Result]):
    """A thread that runs the program of one rank.

    A daemon, so that the end of the process waits for no rank that Ctrl-C could not end.

    Attributes
    ----------
    index : int
    communicator : HostCommunicator
    result : object
        The result of the program, if it raised nothing.
    error : BaseException or None
        The exception of the program.
    """

    result: Result

    def __init__(
        self, index: int, communicator: HostCommunicator, body: Callable[[], Result]
    ) -> None:
        super().__init__(name=f"rank {index}", daemon=True)
        self.index = index
        self.communicator = communicator
        self.error: BaseException | None = None
        self._body = body
        self._interruptible = True
        self._lock = concurrency.Lock()
        self._over = False
        self._end = concurrency.Lock()
        self._end.acquire()

    @property
    def running(self) -> bool:
        """True while the program runs; `is_alive` may be wrong after Ctrl-C in a `join`."""
        return self.ident is not None and not self._over

    def run(self) -> None:
        try:
            try:
                self.result = run_as_rank(self.communicator, self._body)
            except BaseException as error:
                self.error = error
            with self._lock:
                self._interruptible = False
        except KeyboardInterrupt:
            pass  # of `interrupt`, just after the end of the program
        finally:
            self._over = True
            self._end.release()

    def wait(self, seconds: float) -> None:
        """Wait for the end, for so long at most."""
        self._end.acquire(timeout=seconds)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the program, once, between two of its instructions.

        Does nothing during an import: other threads would then wait for the import for ever.
        """
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        with self._lock:
            if self._interruptible and not _is_importing(self.frame):
                self._interruptible = False
                raise_in(ctypes.c_ulong(self.ident or 0), ctypes.py_object(KeyboardInterrupt))

    @property
    def frame(self) -> FrameType | None:
        """The frame that the thread is in; None at its end."""
        return sys._current_frames().get(self.ident or 0)


def _stop(ranks: Sequence[_Rank[Any]], stop: BaseException) -> None:
    """End all ranks; the text of `stop` gets those that cannot be ended."""
    for rank in ranks:
        threads.abort(rank.communicator, f"run_ranks was ended by {type(stop).__name__}")
    # The error of a call leaves every store in order, so calls of stores have the time to end.
    left, end = _wait(ranks, _CALL_SECONDS), concurrency.monotonic() + _PROGRAM_SECONDS
    while left and concurrency.monotonic() < end:
        for rank in left:
            rank.interrupt()
        left = _wait(ranks, _POLL_SECONDS)
    if left:
        names = ", ".join(f"{rank.index} ({_place(rank)})" for rank in left)
        annotate(stop, f"still in calls or imports that Python cannot end: rank {names}")


def _wait(ranks: Sequence[_Rank[Any]], seconds: float = math.inf) -> list[_Rank[Any]]:
    """Wait for the end of all ranks, for so long at most; return the ranks that still run."""
    end = concurrency.monotonic() + seconds
    while (running := [rank for rank in ranks if rank.running]) and concurrency.monotonic() < end:
        # Not without end: only then `_Rank.interrupt` ends this wait in a rank of another call.
        running[0].wait(_POLL_SECONDS)
    return running


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether an import is on the stack of a frame."""
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def _place(rank: _Rank[Any]) -> str:
    """Return the file and line that a rank is in."""
    frame = rank.frame
    return "its end" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _first(ranks: Sequence[_Rank[Any]]) -> BaseException | None:
    """Return the error that caused the others; None without errors."""
    errors = {rank.index: rank.error for rank in ranks if rank.error is not None}
    return first_error(errors, len(ranks))
