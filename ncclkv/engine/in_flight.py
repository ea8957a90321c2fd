"""What is launched in a bucket, and how long it took before."""

from __future__ import annotations

from collections import deque
from statistics import median
from time import perf_counter

from ncclkv.comm.types import Work

_REMEMBERED = 9


class InFlight:
    """The collectives of a bucket that are launched and not known to be complete; false if none."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._since: float | None = None
        self._times: deque[float] = deque(maxlen=_REMEMBERED)

    def __bool__(self) -> bool:
        return bool(self._works)

    def add(self, work: Work, since: float | None = None) -> None:
        """Take a launched collective; it is timed, if the moment of its launch is given."""
        self._works.append(work)
        self._since = since if work.blocks else None

    def complete(self) -> None:
        """Wait for all of them."""
        for work in self._works:
            work.wait()
        if self._since is not None:
            self._times.append(perf_counter() - self._since)
        self.clear()

    def clear(self) -> None:
        """Forget them."""
        self._works.clear()
        self._since = None

    @property
    def seconds(self) -> float | None:
        """The median of the last times from a launch to the end of the wait; None without any."""
        return median(self._times) if self._times else None
