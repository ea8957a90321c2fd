"""Deadlines: limits of the host's waits, and of NCCL's calls that wait for other ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ncclkv import concurrency
from ncclkv.comm.backoff import Backoff, pause
from ncclkv.errors import CommTimeout
from ncclkv.system import watchdog

ABORT_SECONDS = 2.0
"""Seconds that an abort may take: the other ranks may have exited, and the device may hang."""

LEEWAY = 5.0
"""Seconds that the watchdog adds to a deadline, so that an error is raised first if possible."""

# Polls after which the sleeps double: a poll of an event costs more than a poll of a message.
_POLLS_PER_DOUBLING = 8

# Seconds between two checks of everything that costs more than an event.
_CHECK_SECONDS = 5e-3

# Seconds between two checks while a thread makes a call.
_CALL_CHECK_SECONDS = 0.05

# Seconds in which a collective may complete whose rank has left just after its part.
_GRACE_SECONDS = 0.2


class Deadline(Backoff):
    """Deadline of one wait of the host, which polls events often and everything else rarely."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit, partial(pause, attempts_per_doubling=_POLLS_PER_DOUBLING))
        self._checked = 0.0
        self._lost: float | None = None

    def is_check_due(self) -> bool:
        """Yield the processor or sleep; return whether a check of the wait is due."""
        self.pause()
        if self.waited - self._checked < _CHECK_SECONDS:
            return False
        self._checked = self.waited
        return True

    def grace_expired(self) -> bool:
        """Return whether 0.2 s have passed since the first call of this method in the wait."""
        self._lost = self.waited if self._lost is None else self._lost
        return self.waited - self._lost > _GRACE_SECONDS


def call_with_timeout(
    what: str, function: Callable[[], Any], seconds: float, look: Callable[[], None] | None = None
) -> Any:
    """Make a call in a thread, and abandon the thread if the call hangs.

    If Python starts no more threads, this thread makes the call; then only the watchdog ends it.

    Parameters
    ----------
    what : str
        The library and its function, for messages.
    function : callable
        ``function()`` makes the call; the new thread has a current device of its own.
    seconds : float
        Seconds that the call may take.
    look : callable, optional
        ``look()`` is called every 50 ms meanwhile, and after the last second, in the caller's
        thread.  An error that it raises ends the wait.

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

    thread = concurrency.Thread(target=run, name=what, daemon=True)
    # If the call keeps Python's lock, this thread cannot read the clock, but the watchdog can.
    with watchdog.guard(what, seconds + LEEWAY):
        try:
            thread.start()
        except RuntimeError:  # at the end of Python 3.12.0 and 3.12.1 no thread starts
            run()
        else:
            _join(thread, seconds, look)
    if not outcome:
        if look is not None:  # its error may have the cause
            look()
        raise timeout_error(what, seconds)
    result, error = outcome
    if error is not None:
        raise error
    return result


def _join(thread: concurrency.Thread, seconds: float, look: Callable[[], None] | None) -> None:
    """Wait for a thread, at most so many seconds."""
    limit = concurrency.monotonic() + seconds
    while (
        look is not None
        and thread.is_alive()
        and concurrency.monotonic() + _CALL_CHECK_SECONDS < limit
    ):
        thread.join(_CALL_CHECK_SECONDS)
        look()
    # A stopped process leaves the call no time, so it always gets a little.
    thread.join(max(_CALL_CHECK_SECONDS, limit - concurrency.monotonic()))


def timeout_error(what: str, seconds: float) -> CommTimeout:
    """Return the error of a call that waited too long for other ranks."""
    return CommTimeout(
        f"{what} waited {seconds:g} s for the other ranks; check that all ranks run and reach each "
        f"other: NCCL_DEBUG=INFO shows their connections, NCCL_SOCKET_IFNAME chooses the network"
    )
