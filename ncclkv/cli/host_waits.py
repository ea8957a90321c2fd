"""Waits for hosts: the pauses after starts in which some rank never began.

Such a start is no crash of the program: a host or the link to it is down, and may come back.
"""

from __future__ import annotations

from ncclkv import concurrency
from ncclkv.cli.outcome import Outcome

MOST = 15
"""Count of such starts in a row after which no other is made; their pauses last ten minutes."""

_LONGEST_SECONDS = 60.0


def is_wait(outcome: Outcome, several_hosts: bool) -> bool:
    """Return whether a failed start waits for hosts, and so uses up no restart.

    On one machine a launcher that starts no rank at all has wrong arguments, or too few slots.
    """
    began = any(rank.began for rank in outcome.ranks.values())
    return bool(outcome.not_begun) and (began or several_hosts)


def seconds_after(waits: int) -> float:
    """Return the pause after so many such starts in a row.

    Examples
    --------
    >>> [seconds_after(waits) for waits in (1, 2, 3, 6, 7, 15)]
    [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]
    """
    return min(2.0 ** (waits - 1), _LONGEST_SECONDS)


def pause(seconds: float) -> bool:
    """Wait; return False if the user interrupts it."""
    try:
        concurrency.sleep(seconds)
    except KeyboardInterrupt:
        return False
    return True
