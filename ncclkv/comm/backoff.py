"""Backoff: the pauses between the polls of one wait, up to a deadline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ncclkv import concurrency

YIELDS = 50
"""Pauses that only yield the processor: events that are about to happen need no sleep."""

FIRST_SLEEP = 20e-6
"""Seconds of the first sleep of a wait."""

_MAX_SLEEP = 1e-3
_MAX_DOUBLINGS = 10


def pause(attempt: int, attempts_per_doubling: int = 64) -> None:
    """Yield the processor, or sleep: the longer, the more attempts there were.

    With more ranks than cores, a rank that only spins keeps the rank it awaits from running.

    Parameters
    ----------
    attempt : int
        Number of this pause in its wait, from 1.
    attempts_per_doubling : int
        Sleeps double after so many attempts, from 20 us up to 1 ms.
    """
    if attempt <= YIELDS:
        concurrency.sched_yield()
    else:
        doublings = min((attempt - YIELDS) // attempts_per_doubling, _MAX_DOUBLINGS)
        concurrency.sleep(min(FIRST_SLEEP * 2**doublings, _MAX_SLEEP))


class Backoff:
    """Iterates over the polls of one wait: yields the seconds waited, pauses between two polls.

    The iteration ends with a poll after the limit: what happened during the last pause counts, even
    if the process was stopped in it.

    Parameters
    ----------
    limit : float
        Seconds that the wait may last.
    pause : callable
        ``pause(attempt)``, with `attempt` from 1.

    Examples
    --------
    >>> polls = iter([False, False, True])
    >>> for waited in Backoff(10.0):
    ...     if next(polls):
    ...         break
    ... else:
    ...     raise TimeoutError
    """

    def __init__(self, limit: float = math.inf, pause: Callable[[int], object] = pause) -> None:
        self._limit = limit
        self._pause = pause

    def __iter__(self) -> Iterator[float]:
        begin, attempt, waited = concurrency.monotonic(), 0, 0.0
        yield waited
        while waited < self._limit:
            attempt += 1
            self._pause(attempt)
            waited = concurrency.monotonic() - begin
            yield waited
