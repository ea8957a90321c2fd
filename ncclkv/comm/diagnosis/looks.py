"""Looks: the times at which a long wait compares calls and requests reports.

A rank that was off its processor finds that its wait has lasted for long.  So the next look is
counted from the last one, and is never made up for: looks in a burst would find nothing new.
"""

from __future__ import annotations

from typing import NamedTuple

LONG_SECONDS = 0.25
"""A wait is long after this time; it then compares calls, and again after this time at least."""

_CLOSE_REQUESTS = 8
"""Count of requests that may follow each other at once; later ones double the wait."""


class Looks(NamedTuple):
    """The looks of one wait; an empty one before its first look.

    Attributes
    ----------
    made, requests : int
        Counts of looks, and of looks that requested reports.
    due, request_due : float
        Lengths in seconds of the wait at which the next look, and the next request, are due.
    """

    made: int = 0
    due: float = LONG_SECONDS
    requests: int = 0
    request_due: float = LONG_SECONDS

    def is_due(self, waited: float) -> bool:
        """Return whether a wait of `waited` seconds is due to look."""
        return waited >= self.due

    def is_request_due(self, waited: float) -> bool:
        """Return whether a look after `waited` seconds also requests reports.

        A rank of a slow but correct program makes requests too, so they become rare.  They do not
        end: the other rank may begin the wait that they find at any time.
        """
        return waited >= self.request_due

    def next(self, waited: float) -> Looks:
        """Return the looks after one at `waited` seconds."""
        due = waited + LONG_SECONDS
        if not self.is_request_due(waited):
            return self._replace(made=self.made + 1, due=due)
        requests = self.requests + 1
        request_due = due if requests < _CLOSE_REQUESTS else 2 * waited
        return Looks(self.made + 1, due, requests, max(due, request_due))
