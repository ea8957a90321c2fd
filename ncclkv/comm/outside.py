"""A wait of a thread that is in no store, such as for a new MPI communicator.

The ranks that it waits for may wait for this one in an open store.  So the wait is shown on the
pages of the thread's open stores, whose collectives go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident

from ncclkv.comm.board import EVERYONE
from ncclkv.comm.calls import Calls, is_due
from ncclkv.comm.transport import Transport
from ncclkv.comm.work import open_flights

Awaited = Callable[[Transport], Sequence[int]]
"""Returns the ranks of a store's transport that the wait is for."""


class Outside:
    """One such wait, which begins now.

    Parameters
    ----------
    words : str
        What waits.
    awaited : callable
        As `Awaited`.
    """

    def __init__(self, words: str, awaited: Awaited) -> None:
        self._words = words
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
            with suppress(Exception):
                flight.progress()
        waited = time.monotonic() - self._begin
        if is_due(waited, self._looks):
            self._looks += 1
            for flight in flights:
                flight.wait_elsewhere(self._words, self._names(flight.transport, flight.calls))
                found = flight.calls.found()
                if found is not None:
                    flight.end(found)
                    raise found
        return waited

    def over(self) -> None:
        """Show that the wait is over."""
        if self._looks:
            for flight in open_flights(get_ident()):
                flight.calls.board.wait_no_more()

    def _names(self, transport: Transport, calls: Calls) -> list[str]:
        """Return the names, in an open store, of the ranks that this wait is for."""
        ranks = {*self._awaited(transport)} - {transport.rank}
        if len(ranks) == transport.size - 1:
            return [EVERYONE]
        reports = map(calls.report, sorted(ranks))
        return [report.name for report in reports if report is not None]
