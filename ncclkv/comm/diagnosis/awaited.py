"""Awaited: the ranks that an observed wait is for."""

from __future__ import annotations

from ncclkv import concurrency
from ncclkv.comm.diagnosis.hang import AwaitedWork
from ncclkv.comm.types import WaitObserver

_SHARE = 0.1
"""Share of a wait for which ranks were missing, at least, to be the cause of its end."""

_SHORTEST_SECONDS = 1e-5
"""Shorter waits are not reported."""


class Awaited:
    """The sets of ranks that one wait is for, in turn.

    The last set alone would be wrong: once the last rank has come, a rank that came early may have
    a part of the sum to make, for some microseconds.

    Parameters
    ----------
    observer : WaitObserver
    start : float
        The begin of the wait, by ``concurrency.monotonic``.
    """

    def __init__(self, observer: WaitObserver, start: float) -> None:
        self._observer = observer
        self._start = self._since = start
        self._missing: set[int] = set()
        self._sets: list[tuple[float, set[int]]] = []
        self._reported = False

    def note(self, work: AwaitedWork, missing: set[int]) -> None:
        """Note the ranks that are missing now; report the wait after its first look."""
        if missing != self._missing:
            self._change(missing)
        if work.looks.made and not self._reported:
            self._reported = True
            self._observer.waiting(str(work), missing)

    def _change(self, missing: set[int]) -> None:
        """Begin another set of ranks."""
        now = concurrency.monotonic()
        self._sets.append((now - self._since, self._missing))
        self._since, self._missing = now, missing

    def end(self, work: AwaitedWork) -> None:
        """Report the wait, with the ranks that were missing last for a good part of it."""
        self._change(set())
        waited = self._since - self._start
        sets = [each for each in self._sets if each[1]]
        if sets and waited > _SHORTEST_SECONDS:
            # Many ranks that come one by one leave no long set.
            least = min(_SHARE * waited, max(seconds for seconds, _ in sets) / 2)
            long = [missing for seconds, missing in sets if seconds >= least]
            self._observer.blocked(str(work), long[-1], waited)
