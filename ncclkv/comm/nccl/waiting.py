"""Deadlines: of a wait of the host, and of a call of NCCL that waits for other ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ncclkv.comm import backoff
from ncclkv.errors import CommTimeout
from ncclkv.system import watchdog

ABORT_SECONDS = 10.0
"""Seconds that an abort may take: the other ranks may have exited, and the device may hang."""

LEEWAY = 5.0
"""Seconds that the watchdog adds to a deadline, so that an error is raised first if possible."""

# Sleeps between polls double after so many: a poll of an event costs more than one of a message.
_POLLS_PER_DOUBLING = 8

# Between two looks at the clock and at all that costs more than an event.
_LOOK_SECONDS = 5e-3

# Between two looks while a thread makes a call.
_CALL_LOOK_SECONDS = 0.05

# A rank may leave just after its part of a collective, whose result is still in flight.
_GRACE_SECONDS = 0.2


class Deadline:
    """The deadline of one wait of the host, which begins now.

    Parameters
    ----------
    limit : float
        Seconds that the wait may take.

    Attributes
    ----------
    waited : float
        Seconds that the wait had taken at the last `pause` or `tick`.
    reported : int
        Number of lines on stderr that were due about the wait.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.waited = 0.0
        self.reported = 0
        self._start = self._looked = time.monotonic()
        self._lost: float | None = None
        self._attempt = 0

    def pause(self) -> bool:
        """Yield the processor or sleep; return whether more than the event is due for a look."""
        self._attempt += 1
        backoff.pause(self._attempt, _POLLS_PER_DOUBLING)
        now = self.tick()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def tick(self) -> float:
        """Read the clock: update `waited`, and return the time in seconds."""
        now = time.monotonic()
        self.waited = now - self._start
        return now

    def late(self) -> bool:
        """Return whether the limit had passed at the last `pause` or `tick`."""
        return self.waited > self.limit

    def grace_expired(self) -> bool:
        """Return whether the first call of this method in the wait was long enough ago."""
        self._lost = self.waited if self._lost is None else self._lost
        return self.waited - self._lost > _GRACE_SECONDS


def call_with_timeout(
    what: str,
    function: Callable[[], Any],
    seconds: float,
    look: Callable[[], None] | None = None,
) -> Any:
    """Make a call in a thread, and abandon the thread if the call hangs.

    If Python starts no more threads, the call is made in place; then only the watchdog ends it.

    Parameters
    ----------
    what : str
        The library and its function, for messages.
    function : callable
        ``function()`` makes the call; the new thread has a current device of its own.
    seconds : float
        Seconds that the call may take.
    look : callable, optional
        ``look()`` is called every 50 ms meanwhile, in the caller's thread, and may raise.

    Returns
    -------
    object
        The result of the call.

    Raises
    ------
    CommTimeout
        When the call takes longer.  An error of the call is raised as it is.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome[:] = [function(), None]
        except BaseException as error:
            outcome[:] = [None, error]

    thread = threading.Thread(target=run, name=what, daemon=True)
    # A call that keeps Python's lock keeps this thread from reading the clock, too.
    with watchdog.guard(what, seconds + LEEWAY):
        try:
            thread.start()
        except RuntimeError:  # at the end of Python 3.12.0 and 3.12.1 no thread starts
            run()
        else:
            _join(thread, seconds, look)
    if not outcome:
        raise timeout_error(what, seconds)
    result, error = outcome
    if error is not None:
        raise error
    return result


def _join(thread: threading.Thread, seconds: float, look: Callable[[], None] | None) -> None:
    """Wait for a thread, for so many seconds at most."""
    limit = time.monotonic() + seconds
    while look is not None and thread.is_alive() and time.monotonic() + _CALL_LOOK_SECONDS < limit:
        thread.join(_CALL_LOOK_SECONDS)
        look()
    thread.join(max(0.0, limit - time.monotonic()))


def timeout_error(what: str, seconds: float) -> CommTimeout:
    """Return the error of a call that waited too long for other ranks."""
    return CommTimeout(
        f"{what} waited {seconds:g} s for the other ranks; look at whether they all run and reach "
        f"each other: NCCL_DEBUG=INFO shows their connections, NCCL_SOCKET_IFNAME chooses the "
        f"network"
    )
