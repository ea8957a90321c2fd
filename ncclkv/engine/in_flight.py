"""`InFlight`: the launched collectives of a bucket, and the durations of completed collectives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ncclkv import concurrency
from ncclkv.comm.types import Work

_MAX_TIMES = 9


class InFlight:
    """The collectives of a bucket that are launched and not yet waited for.

    Attributes
    ----------
    works : sequence of Work
        Empty while nothing is in flight.
    """

    def __init__(self) -> None:
        self._works: list[Work] = []
        self.works: Sequence[Work] = self._works
        self._since: float | None = None
        self._times: deque[float] = deque(maxlen=_MAX_TIMES)

    def add(self, work: Work, since: float | None = None) -> None:
        """Add a launched collective; time it if the launch time `since`, in seconds, is given."""
        self._works.append(work)
        self._since = since if work.blocks else None

    def complete(self) -> None:
        """Wait for all collectives, and remove them."""
        works = self._works
        for work in works:
            work.wait()
        if self._since is not None:
            self._times.append(concurrency.perf_counter() - self._since)
            self._since = None
        works.clear()

    def poll(self) -> bool:
        """Advance the collectives in their order; return whether all are done."""
        return all(work.done() for work in self._works)

    def abandon(self) -> None:
        """Remove all collectives without waiting for them."""
        self._works.clear()
        self._since = None

    @property
    def seconds(self) -> float | None:
        """Median of the last nine times from launch to end of wait; None before the first."""
        from statistics import median  # slow to import, and seldom needed

        return median(self._times) if self._times else None
