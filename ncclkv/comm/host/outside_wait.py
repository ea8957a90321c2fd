"""A wait of a thread that is in no store, such as for a new MPI communicator.

The ranks that it waits for may wait for this one in an open store.  So the wait is shown on the
pages of the thread's open stores, whose collectives go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident

from ncclkv.comm.diagnosis import dump, stall
from ncclkv.comm.diagnosis.mismatch import CallComparison, is_due
from ncclkv.comm.diagnosis.reports import EVERYONE
from ncclkv.comm.messages.progress import open_flights
from ncclkv.comm.transport import Transport

_REPORTING = 2

Awaited = Callable[[Transport], Sequence[int]]
"""Returns the ranks of a store's transport that the wait is for."""


class OutsideWait:
    """One such wait, which begins now.

    Parameters
    ----------
    words : str
        What waits.
    awaited : callable
        As `Awaited`.
    rank, size : int
        This rank, among those that the wait is for.
    limit : float
        Seconds that the wait may last.
    """

    def __init__(self, words: str, awaited: Awaited, *, rank: int, size: int, limit: float) -> None:
        self._words = words
        self._rank, self._size, self._limit = rank, size, limit
        self._reported = 0
        self._awaited = awaited
        self._begin = time.monotonic()
        self._looks = 0

    def look(self) -> float:
        """Advance what is in flight elsewhere, and show this wait to those who may wait for it.

        Returns
        -------
        float
            Seconds since the wait began.

        Raises
        ------
        OrderMismatch
            When a rank waits for this one in an open store, and so this wait has no end.
        """
        flights = open_flights(get_ident())
        for flight in flights:
            # What fails there is raised by the next call there.
            with suppress(Exception), flight.lock:
                flight.progress()
        waited = time.monotonic() - self._begin
        if is_due(waited, self._looks):
            self._looks += 1
            for flight in flights:
                with flight.lock:
                    flight.wait_elsewhere(self._words, self._names(flight.calls))
                    found = flight.calls.compare_reports()
                    if found is not None:
                        flight.end(found)
                        dump.write(found, flight.calls, flight.calls.transport.name)
                        raise found
        if stall.is_due(waited, self._limit, self._reported):
            self._reported += 1
            # Nobody shows yet that it waits: the lowest rank reports, and the next if that is late.
            if self._rank < _REPORTING:
                words = f"{self._words} waits for all ranks to call it"
                stall.write_line(self._rank, self._size, words, waited, self._limit, "")
        return waited

    def over(self) -> None:
        """Show that the wait is over."""
        if self._looks:
            for flight in open_flights(get_ident()):
                flight.calls.recorder.clear_other_wait()

    def _names(self, calls: CallComparison) -> list[str]:
        """Return the names, in an open store, of the ranks that this wait is for."""
        ranks = {*self._awaited(calls.transport)}
        if len(ranks) == calls.transport.size:
            return [EVERYONE]
        reports = map(calls.report, sorted(ranks))
        return [report.name for report in reports if report is not None]
