"""Calls of NCCL that wait for other ranks, with a deadline that NCCL itself does not have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ncclkv.errors import CommTimeout
from ncclkv.system import watchdog

ABORT_SECONDS = 10.0
"""Seconds that an abort may take: peers may be gone, and so may the device."""

_LOOK_SECONDS = 0.05

LEEWAY = 5.0
"""Seconds more for a call that hangs altogether: where an error can be raised, it comes first."""


def bounded(
    what: str,
    function: Callable[[], Any],
    seconds: float,
    look: Callable[[], None] | None = None,
) -> Any:
    """Make a call in a thread, which is left behind if the call hangs.

    Where Python starts no more threads the call is made in place: the watchdog alone ends it then.

    Parameters
    ----------
    what : str
        The library and its function, for messages.
    function : callable
        ``function()`` makes the call; the new thread has a current device of its own.
    seconds : float
        How long it may take.
    look : callable, optional
        ``look()`` is called now and then meanwhile, in the caller's thread, and may raise.

    Raises
    ------
    CommTimeout
        When it takes longer.  What the call itself raises is raised here.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome[:] = [function(), None]
        except BaseException as error:
            outcome[:] = [None, error]

    thread = threading.Thread(target=run, name=what, daemon=True)
    # A call that keeps Python's lock keeps this thread from looking at the clock, too.
    with watchdog.guard(what, seconds + LEEWAY):
        try:
            thread.start()
        except RuntimeError:  # at the end of Python 3.12.0 and 3.12.1 there are no new threads
            run()
        else:
            _join(thread, seconds, look)
    if not outcome:
        raise late(what, seconds)
    result, error = outcome
    if error is not None:
        raise error
    return result


def _join(thread: threading.Thread, seconds: float, look: Callable[[], None] | None) -> None:
    """Wait for a thread, so long at most."""
    limit = time.monotonic() + seconds
    while look is not None and thread.is_alive() and time.monotonic() + _LOOK_SECONDS < limit:
        thread.join(_LOOK_SECONDS)
        look()
    thread.join(max(0.0, limit - time.monotonic()))


def late(what: str, seconds: float) -> CommTimeout:
    """Make the error for a call that other ranks keep waiting."""
    return CommTimeout(
        f"{what} waited {seconds:g} s for the other ranks; look at whether they all run and reach "
        f"each other: NCCL_DEBUG=INFO shows their connections, NCCL_SOCKET_IFNAME chooses the "
        f"network"
    )
