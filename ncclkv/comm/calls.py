"""Which calls the ranks of a communicator have made, found out when something is wrong.

The pages of neighbours are read; other ranks report.  A rank that waits long tells whom it waits
for of its calls, and is told of theirs by those who wait as well.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ncclkv.comm.board import NBYTES, REPORTED, Board, Call, Report, difference, last
from ncclkv.comm.transport import Transport
from ncclkv.errors import OrderMismatch

# How long a rank that knows of a difference waits for the words of the others.
_PATIENCE = 1.0

_SHOWN = 8

# What stands in a text for what it leaves out.
_CUT = "..."


class Calls:
    """What this rank knows of the calls of all.

    Parameters
    ----------
    transport : Transport

    Attributes
    ----------
    board : Board
        This rank's alone, unless another is set.
    odd : callable
        ``odd(first, second)``: the key that is only in the first of two calls, by the numbers of
        their keys, and the one that is only in the second; None for each that is not known.
    """

    def __init__(self, transport: Transport) -> None:
        self.board = Board(transport.rank, {transport.rank: np.zeros(NBYTES, np.uint8)})
        self.odd: Callable[[int, int], tuple[Any, Any]] = lambda first, second: (None, None)
        self._transport = transport
        self._where = f"rank {transport.rank} of {transport.size}: "
        self._peers = [rank for rank in range(transport.size) if rank != transport.rank]
        self._reports: dict[int, Report] = {}
        self._uncompared: dict[int, Report] = {}

    # Asking and answering

    def ask(self, ranks: Iterable[int]) -> None:
        """Tell some ranks of this one's calls, who then tell of theirs."""
        self._inform(self._transport.rank, ranks, wanted=True)

    def tell(self) -> None:
        """Tell all ranks of this one's calls."""
        self._inform(self._transport.rank, self._peers)

    def _inform(self, subject: int, ranks: Iterable[int], *, wanted: Any = False) -> None:
        report = self.board.read(subject, REPORTED)
        data = pickle.dumps((subject, report.who, [tuple(call) for call in report.calls], wanted))
        self._transport.inform(data, ranks)

    def hear(self) -> None:
        """Take in what others have told, and answer; `Transport.departed` has heard it."""
        heard = self._transport.heard
        while heard:
            peer, data = heard.pop(0)
            subject, who, calls, wanted = pickle.loads(data)
            report = Report(who, [Call(*call) for call in calls])
            self._reports[subject] = self._uncompared[subject] = report
            if wanted:
                self._inform(self._transport.rank, [peer])

    # Comparing

    def found(self) -> OrderMismatch | None:
        """A difference between what others have told and this rank's calls."""
        self.hear()
        if not self._uncompared:
            return None
        found = self._compare(self._uncompared)
        # What this rank has not called yet can be compared only then.
        for rank, report in [*self._uncompared.items()]:
            if not report.calls or report.calls[-1].number <= self.board.count:
                del self._uncompared[rank]
        return found

    def look(self) -> OrderMismatch | None:
        """A difference between neighbours' calls and this rank's."""
        neighbours = (rank for rank in self._peers if rank in self.board)
        return self._compare({rank: self.board.read(rank) for rank in neighbours})

    def _compare(self, reports: dict[int, Report]) -> OrderMismatch | None:
        """The first difference from this rank's calls."""
        mine = self.board.read(self._transport.rank)
        for rank, report in sorted(reports.items()):
            pair = difference(mine.calls, report.calls)
            if pair is not None:
                return OrderMismatch(self._where + self._words(rank, *pair))
        return None

    def _words(self, rank: int, mine: Call, theirs: Call) -> str:
        both = sorted([(self._transport.rank, mine), (rank, theirs)])
        said = ", but ".join(f"rank {each} called {call.text}" for each, call in both)
        return (
            f"the ranks differ in call {mine.number} of this store: {said}{self._odd(both)}; make "
            f"the same calls in the same order on all ranks"
        )

    def _odd(self, both: Sequence[tuple[int, Call]]) -> str:
        """What keys two ranks' calls do not have in common, where their texts are too short."""
        (_, first), (_, second) = both
        if first.what != second.what or _CUT not in first.text + second.text:
            return ""
        keys = zip(both, self.odd(first.keys, second.keys), strict=True)
        said = [f"only rank {rank} has key {key!r}" for (rank, _), key in keys if key is not None]
        return f" ({', '.join(said)})" if said else ""

    def explained(self, error: OrderMismatch) -> OrderMismatch:
        """Tell all ranks that calls differ, and find out which; `error` where that fails."""
        if not self.board.count:
            return error
        self.tell()
        limit = time.monotonic() + _PATIENCE
        attempt = 0
        while time.monotonic() < limit:
            self._transport.departed()
            found = self.look() or self.found()
            if found is not None:
                return found
            attempt += 1
            self._transport.pause(attempt)
        return error

    # Words for those who wait in vain

    def last(self, ranks: Iterable[int]) -> str:
        """What some ranks called last, as far as is known here."""
        reports = {rank: self._report(rank) for rank in sorted(ranks)}
        known = [last(report) for report in reports.values() if report and report.calls]
        more = f"; and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        return "; ".join(known[:_SHOWN]) + more

    def _report(self, rank: int) -> Report | None:
        """What is known of a rank."""
        return self.board.read(rank, 1) if rank in self.board else self._reports.get(rank)
