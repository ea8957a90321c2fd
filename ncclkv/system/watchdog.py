"""Watchdog: a deadline for calls that hold the interpreter's lock.

While a call into MPI, NCCL or CUDA waits for other ranks with the lock held, no thread of Python
can run.  A timer of libc (``timer_create``) therefore calls ``Py_FatalError``, which needs no lock:
it writes a text made beforehand and the stacks of all threads, and ends the process by SIGABRT.
Every launcher takes a death by signal for the job's failure.  Before MPI's start launchers ignore
exit codes: ``faulthandler.dump_traceback_later`` exits with code 1 and cannot take this place.

Guarded are MPI's start, new communicators and windows, ``MPI_Finalize``, NCCL's blocking calls, and
the loading of CUDA kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

from ncclkv.system import abort

# <time.h> and <signal.h> of Linux.
_CLOCK_MONOTONIC = 1
_SIGEV_THREAD = 2


class _Event(ctypes.Structure):
    """``struct sigevent`` with 64-bit pointers: the action of a timer."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("reserved", ctypes.c_char * 32),
    )


_Times = ctypes.c_long * 4
"""``struct itimerspec``: seconds and nanoseconds of a timer's period, then of its first time."""


@contextmanager
def guard(what: str, seconds: float) -> Iterator[None]:
    """End the job when the block takes too long, even if it never releases Python's lock.

    The block has no deadline where `abort.may_end_the_job` is false, or libc has no timers.
    Blocks may be nested and run in several threads: each has its own timer.  The first block of a
    process starts a thread of libc; a later block costs 20 microseconds.

    Parameters
    ----------
    what : str
        The action of the block, for the message: ``"starting MPI"``.
    seconds : float
        Its deadline.

    Examples
    --------
    >>> with guard("a sum", 60):
    ...     total = 1 + 1
    """
    with closing(Alarm(what, seconds)) as alarm, alarm:
        yield


class Alarm:
    """Guard for frequent blocks of one thread: a single timer is set anew for each block.

    Blocks must not be nested.  A block costs a few microseconds.

    Parameters
    ----------
    what, seconds
        As for `guard`.
    """

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._made = False
        self._library: Any = None
        self._timer: Any = None
        # Made once: making them takes longer than a short block.
        whole = int(seconds)
        nanoseconds = max(1, int((seconds - whole) * 1e9))
        self._on = ctypes.byref(_Times(0, 0, whole, nanoseconds))
        self._off = ctypes.byref(_Times(0, 0, 0, 0))

    def _make(self) -> None:
        """Make the timer, if the job may be ended and the system has another timer."""
        self._made = True
        library = _library() if abort.may_end_the_job() else None
        if library is None:
            return
        # The timer reads the text when it fires: freed memory would be written to stderr.
        self._text = ctypes.create_string_buffer(_message(self._what, self._seconds))
        fatal = ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p)
        event = _Event(ctypes.addressof(self._text), 0, _SIGEV_THREAD, fatal)
        self._timer = ctypes.c_void_p()
        if not library.timer_create(
            _CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)
        ):
            self._library = library

    def __enter__(self) -> None:
        if not self._made:
            self._make()
        if self._library is not None:
            self._library.timer_settime(self._timer, 0, self._on, None)

    def __exit__(self, *_: object) -> None:
        if self._library is not None:
            self._library.timer_settime(self._timer, 0, self._off, None)

    def close(self) -> None:
        """Free the timer; later blocks have no deadline."""
        library, self._library, self._made = self._library, None, True
        if library is not None:
            library.timer_delete(self._timer)


_armed: list[Alarm] = []
"""Alarms that are never freed: their timers read their texts."""


def arm(what: str, seconds: float) -> None:
    """End the job in `seconds` unless this process has ended by then; cannot be undone."""
    alarm = Alarm(what, seconds)
    _armed.append(alarm)
    alarm.__enter__()


def _message(what: str, seconds: float) -> bytes:
    """Return the text for the deadline; it begins a new line after Python's own first words."""
    reason = (
        f"{what} took more than {seconds:g} s; look at the ranks that do not report this, at the "
        f"stacks below, and at NCCLKV_TIMEOUT if it is only slow"
    )
    return f"\n{abort.announcement(reason)}".encode()


@cache
def _library() -> Any:
    """Load the library with ``timer_create``; None without it, or without 64-bit pointers."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    # Before version 2.34 of glibc timers are in a library of their own.
    for name in (None, "librt.so.1"):
        try:
            library = ctypes.CDLL(name)
            library.timer_create  # noqa: B018
        except (OSError, AttributeError):
            continue
        return library
    return None
