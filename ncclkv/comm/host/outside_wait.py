"""Wait outside any store, such as for a new MPI communicator.

The awaited ranks may wait for this rank in an open store: a deadlock.  The wait is therefore shown
on the pages of this thread's open stores, and their collectives are advanced during the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident

from ncclkv.comm.diagnosis import dump, stall
from ncclkv.comm.diagnosis.mismatch import CallComparison, is_due
from ncclkv.comm.diagnosis.reports import EVERYONE
from ncclkv.comm.messages.progress import open_progress_engines
from ncclkv.comm.transport import Transport

# No page shows this wait: the two lowest ranks write lines, in case the first is the late rank.
_REPORTING_RANKS = 2

Awaited = Callable[[Transport], Sequence[int]]
"""Returns the ranks of a store's transport that the wait awaits."""


class OutsideWait:
    """A wait outside any store.

    Parameters
    ----------
    description : str
        The call that waits.
    awaited : callable
        As `Awaited`.
    rank, size : int
        This rank among the awaited ranks and itself.
    limit : float
        Seconds that the wait may last.
    """

    def __init__(
        self, description: str, awaited: Awaited, *, rank: int, size: int, limit: float
    ) -> None:
        self._description = description
        self._rank, self._size, self._limit = rank, size, limit
        self._reported = 0
        self._awaited = awaited
        self._looks = 0

    def look(self, waited: float) -> None:
        """Advance this thread's collectives in open stores, and show this wait there.

        Parameters
        ----------
        waited : float
            Seconds since the wait began.

        Raises
        ------
        OrderMismatch
            When an awaited rank waits for this rank in an open store.
        """
        engines = open_progress_engines(get_ident())
        for progress in engines:
            # The next call of that store raises its failure.
            with suppress(Exception), progress.lock:
                progress.advance()
        if is_due(waited, self._looks):
            self._looks += 1
            for progress in engines:
                with progress.lock:
                    progress.show_other_wait(self._description, self._names(progress.calls))
                    found = progress.calls.compare_reports()
                    if found is not None:
                        progress.end(found)
                        dump.write(found, progress.calls, progress.calls.transport.name)
                        raise found
        if stall.is_due(waited, self._limit, self._reported):
            self._reported += 1
            if self._rank < _REPORTING_RANKS:
                description = f"{self._description} waits for all ranks to call it"
                stall.write_line(self._rank, self._size, description, waited, self._limit, "")

    def over(self) -> None:
        """Clear the shown wait."""
        if self._looks:
            for progress in open_progress_engines(get_ident()):
                progress.calls.recorder.clear_other_wait()

    def _names(self, calls: CallComparison) -> list[str]:
        """Return the awaited ranks' names in an open store."""
        ranks = {*self._awaited(calls.transport)}
        if len(ranks) == calls.transport.size:
            return [EVERYONE]
        reports = map(calls.report, sorted(ranks))
        return [report.name for report in reports if report is not None]
