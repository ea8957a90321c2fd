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
        Index of this pause in its wait, from 1.
    attempts_per_doubling : int
        Sleeps double after so many attempts, from 20 us up to 1 ms.
    """
    if attempt <= YIELDS:
        concurrency.sched_yield()
    else:
        doublings = min((attempt - YIELDS) // attempts_per_doubling, _MAX_DOUBLINGS)
        concurrency.sleep(min(FIRST_SLEEP * 2**doublings, _MAX_SLEEP))


class Backoff:
    """Polls of one wait, which begins now: yields the seconds waited, pauses between two polls.

    The iteration ends with a poll after the limit: what happened during the last pause counts, even
    if the process was stopped in it.

    Parameters
    ----------
    limit : float
        Seconds that the wait may last.
    pause : callable
        ``pause(attempt)``, with `attempt` from 1.

    Attributes
    ----------
    limit : float
    waited : float
        Seconds that the wait had taken at the last `pause` or `tick`.

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
        self.limit = limit
        self.waited = 0.0
        self._pause = pause
        self._begin = concurrency.monotonic()
        self._attempt = 0

    def __iter__(self) -> Iterator[float]:
        yield self.waited
        while self.waited < self.limit:
            self.pause()
            yield self.waited

    def pause(self) -> None:
        """Yield the processor or sleep, and read the clock."""
        self._attempt += 1
        self._pause(self._attempt)
        self.tick()

    def tick(self) -> None:
        """Read the clock: update `waited`."""
        self.waited = concurrency.monotonic() - self._begin

    def late(self) -> bool:
        """Return whether the limit had passed at the last `pause` or `tick`."""
        return self.waited > self.limit
