"""A deadline for calls that Python cannot look at while they last.

A call into MPI, NCCL or CUDA that other ranks keep waiting may hold the interpreter's lock, and
then no thread of Python's can notice, nor tell.  So the clock is libc's: ``timer_create`` has a
thread of libc's call ``Py_FatalError``, which needs no lock, writes a text that was made beforehand
and where each thread stands, and ends the process by SIGABRT.  Every launcher takes that for the
job's end, also before MPI has started, when an exit code counts for nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from ncclkv.system import abort

# <time.h> and <signal.h> of Linux.
_CLOCK_MONOTONIC = 1
_SIGEV_THREAD = 2


_armed: list[ctypes.Array[ctypes.c_char]] = []
"""The texts that timers without an end may still write."""


class _Event(ctypes.Structure):
    """``struct sigevent`` of a machine with 64-bit pointers: what a timer does when it is over."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("reserved", ctypes.c_char * 32),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``: when a timer is over, and then every so often."""

    _fields_ = (
        ("again_seconds", ctypes.c_long),
        ("again_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


@contextmanager
def guard(what: str, seconds: float) -> Iterator[None]:
    """End the job when the block takes too long, even if it never lets Python run.

    Where `abort.may_end_the_job` says no, or libc has no timers, the block runs without a deadline.
    Blocks may lie in each other and run in several threads: each has its own timer.  The first one
    of a process starts a thread of libc's; after that it costs some 20 microseconds.

    Parameters
    ----------
    what : str
        What the block does, for the message: ``"starting MPI"``.
    seconds : float
        How long it may take.

    Examples
    --------
    >>> with guard("a sum", 60):
    ...     total = 1 + 1
    """
    library = _library() if abort.may_end_the_job() else None
    if library is None:
        yield
        return
    text = ctypes.create_string_buffer(_letter(what, seconds))
    timer = _create(library, text)
    if timer is not None:
        library.timer_settime(timer, 0, _times(seconds), None)
    try:
        yield
    finally:
        if timer is not None:
            library.timer_delete(timer)


class Alarm:
    """A `guard` of blocks that come often: its timer is made once, and set anew for each.

    The blocks are of one thread, and do not lie in each other.  One costs a few microseconds.

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
        # Made once, for a block may be shorter than it takes to make them.
        self._on, self._off = _times(seconds), _times(None)

    def _make(self) -> None:
        """Make the timer, where there may be one."""
        self._made = True
        library = _library() if abort.may_end_the_job() else None
        if library is not None:
            # It stays as long as the timer may read it.
            self._text = ctypes.create_string_buffer(_letter(self._what, self._seconds))
            self._timer = _create(library, self._text)
            self._library = None if self._timer is None else library

    def __enter__(self) -> None:
        if not self._made:
            self._make()
        if self._library is not None:
            self._library.timer_settime(self._timer, 0, self._on, None)

    def __exit__(self, *_: object) -> None:
        if self._library is not None:
            self._library.timer_settime(self._timer, 0, self._off, None)

    def close(self) -> None:
        """Free the timer; a block that comes later has none."""
        library, self._library, self._made = self._library, None, True
        if library is not None:
            library.timer_delete(self._timer)


def arm(what: str, seconds: float) -> None:
    """End the job in so many seconds, if this process is still there; nothing takes it back."""
    library = _library() if abort.may_end_the_job() else None
    if library is not None:
        text = ctypes.create_string_buffer(_letter(what, seconds))
        _armed.append(text)
        timer = _create(library, text)
        if timer is not None:
            library.timer_settime(timer, 0, _times(seconds), None)


def _letter(what: str, seconds: float) -> bytes:
    """What is said at the deadline; on a line of its own, for Python begins it with other words."""
    reason = (
        f"{what} took more than {seconds:g} s; look at the ranks that do not say this, at the "
        f"stacks below, and at NCCLKV_TIMEOUT if it is only slow"
    )
    return f"\n{abort.announcement(reason)}".encode()


def _create(library: Any, text: ctypes.Array[ctypes.c_char]) -> Any:
    """A timer that ends the process once it is set; None where there can be no more of them."""
    fatal = ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p)
    event = _Event(ctypes.addressof(text), 0, _SIGEV_THREAD, fatal)
    timer = ctypes.c_void_p()
    if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        return None
    return timer


def _times(seconds: float | None) -> Any:
    """So many seconds from now, as a timer is set; never, for None."""
    if seconds is None:
        return ctypes.byref(_Times(0, 0, 0, 0))
    whole = int(seconds)
    return ctypes.byref(_Times(0, 0, whole, max(1, int((seconds - whole) * 1e9))))


@cache
def _library() -> Any:
    """The library with ``timer_create``; None where there is none, or none that is known here."""
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
