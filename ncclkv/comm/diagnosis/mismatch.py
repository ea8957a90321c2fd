"""Which calls the ranks of a communicator have made, found out when something is wrong.

The pages of neighbours are read; other ranks report.  A rank that waits long tells whom it waits
for of its calls, and is told of theirs by those who wait as well.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ncclkv.comm.diagnosis.flight_recorder import ANSWERED, NBYTES, REPORTED, FlightRecorder
from ncclkv.comm.diagnosis.reports import RecordedCall, Report, difference, last, of_plain, plain
from ncclkv.comm.roster import Roster
from ncclkv.comm.transport import Transport
from ncclkv.errors import OrderMismatch

Odd = Callable[[int, int], tuple[Any, Any]]

# How long a rank that knows of a difference waits for the words of the others.
_PATIENCE = 1.0

# A report that was heard so short a time ago needs not be asked for again.
_FRESH = 0.5

# A wait that is longer looks at what the others have called, and again each time as long.
LONG_SECONDS = 0.25
_MOST_ASKED = 8

_SHOWN = 8

# A wait in another store that was seen so long ago may be over.
_RECENT = 1.0

_FOUND = " found: "

# What stands in a text for what it leaves out.
_CUT = "..."


class CallComparison:
    """What this rank knows of the calls of all.

    Parameters
    ----------
    transport : Transport

    Attributes
    ----------
    board : Board
        This rank's alone, unless another is set.
    odd : callable
        Gives ``odd(first, second)``, or None: the key that is only in the first of two calls, by
        the numbers of their keys, and the one only in the second; None for each not known.
    transport : Transport
    heard : dict of int to float
        When a rank was last heard, by ``time.monotonic()``.
    roster : Roster or None
        The ranks as they described themselves; None where they did not.
    """

    roster: Roster | None = None

    def __init__(self, transport: Transport) -> None:
        self.board = FlightRecorder(transport.rank, {transport.rank: np.zeros(NBYTES, np.uint8)})
        self.odd: Callable[[], Odd | None] = lambda: None
        self.transport = self._transport = transport
        self._where = f"rank {transport.rank} of {transport.size}: "
        self._peers = [rank for rank in range(transport.size) if rank != transport.rank]
        self._reports: dict[int, tuple[Report, float]] = {}
        self._uncompared: dict[int, Report] = {}
        self.heard: dict[int, float] = {}
        self._verdict = ""

    # Asking and answering

    def ask(self, ranks: Collection[int], looks: int = 0) -> None:
        """Tell some ranks of this one's calls, who then tell of theirs; not for ever."""
        if looks >= _MOST_ASKED:
            return
        others = [rank for rank in ranks if rank not in self.board]
        self._inform([self._transport.rank], others, wanted=others)

    def inquire(self, ranks: Collection[int], since: float) -> None:
        """Tell the ranks of other nodes about this wait, ask them about `ranks`, await answers.

        The ranks of this node among `ranks` are reported to them, too.  Reports that were heard
        before the time `since` are dropped.  Answers may take a second in all.
        """
        self._reports = {rank: each for rank, each in self._reports.items() if each[1] >= since}
        far = [rank for rank in self._peers if rank not in self.board]
        wanted = [rank for rank in ranks if rank not in self.board]
        near = [rank for rank in ranks if rank in self.board and rank != self._transport.rank]
        if not far or not self.board.log.count:
            return
        self._inform([self._transport.rank, *near], far, wanted=wanted)
        begin, attempt = time.monotonic(), 0
        while time.monotonic() < begin + _PATIENCE:
            self._transport.left_ranks()
            self.hear()
            # Ranks that came to their own deadline just before have told, and may answer no more.
            if all(self._reports.get(rank, (None, 0.0))[1] > begin - _FRESH for rank in wanted):
                break
            attempt += 1
            self._transport.pause(attempt)

    def tell(self, verdict: str) -> None:
        """Tell all ranks of this one's calls, and what is wrong with them."""
        self._inform([self._transport.rank], self._peers, verdict=verdict, most=REPORTED)

    def _inform(
        self,
        subjects: Iterable[int],
        ranks: Iterable[int],
        *,
        wanted: Sequence[int] = (),
        verdict: str = "",
        most: int = ANSWERED,
    ) -> None:
        """Send ranks the reports of `subjects`, and ask for those of the ranks `wanted`."""
        told = [
            (rank, plain(self.board.read(rank, most)._replace(state=self.state(rank))))
            for rank in subjects
        ]
        self._transport.post(pickle.dumps((told, wanted, verdict)), ranks)

    def hear(self) -> None:
        """Take in what others have told, and answer; `Transport.left_ranks` has heard it."""
        heard = self._transport.inbox
        while heard:
            peer, data = heard.pop(0)
            reports, wanted, verdict = pickle.loads(data)
            now = self.heard[peer] = time.monotonic()
            if verdict:
                # A verdict that was passed on begins with the rank that did so.
                passed = _FOUND in verdict
                self._verdict = (
                    verdict.partition(": ")[2] if passed else f"rank {peer}{_FOUND}{verdict}"
                )
            for subject, told in reports:
                self._uncompared[subject] = report = of_plain(told)
                self._reports[subject] = report, now
            for rank in wanted:
                if rank in self.board:
                    self._inform([rank], [peer])

    def dead(self) -> set[int]:
        """The ranks whose processes are known to have ended."""
        return {rank for rank in self._peers if self._transport.has_ended(rank)}

    # Comparing

    def found(self) -> OrderMismatch | None:
        """A difference between what others have told and this rank's calls."""
        self.hear()
        if not self._uncompared:
            return None
        found = self._compare(self._uncompared)
        if found is None and self._verdict:
            found = OrderMismatch(self._where + self._verdict)
        # What this rank has not called yet can be compared only then.
        for rank, report in [*self._uncompared.items()]:
            if not report.calls or report.calls[-1].number <= self.board.log.count:
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

    def _words(self, rank: int, mine: RecordedCall, theirs: RecordedCall) -> str:
        both = sorted([(self._transport.rank, mine), (rank, theirs)])
        said = ", but ".join(f"rank {each} called {call.text}" for each, call in both)
        return (
            f"the ranks differ in call {mine.number} of this store: {said}{self._odd(both)}; make "
            f"the same calls in the same order on all ranks"
        )

    def _odd(self, both: Sequence[tuple[int, RecordedCall]]) -> str:
        """What keys two ranks' calls do not have in common, where their texts are too short."""
        (_, first), (_, second) = both
        if first.what != second.what or _CUT not in first.text + second.text:
            return ""
        odd = self.odd()
        found = (None, None) if odd is None else odd(first.keys, second.keys)
        keys = zip(both, found, strict=True)
        said = [f"only rank {rank} has key {key!r}" for (rank, _), key in keys if key is not None]
        return f" ({', '.join(said)})" if said else ""

    def explained(self, error: OrderMismatch) -> OrderMismatch:
        """Tell all ranks that calls differ, and find out which; as `error` where that fails."""
        if not self.board.log.count:
            return OrderMismatch(str(error))
        self.tell("")
        limit = time.monotonic() + _PATIENCE
        attempt = 0
        while time.monotonic() < limit:
            self._transport.left_ranks()
            found = self.look() or self.found()
            if found is not None:
                return found
            attempt += 1
            self._transport.pause(attempt)
        return OrderMismatch(str(error))

    # Words for those who wait in vain

    def last(self, ranks: Iterable[int]) -> str:
        """What some ranks called last, as far as is known here."""
        known = [words for rank in sorted(ranks) if (words := self._of(rank))]
        more = f"; and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        return "; ".join(known[:_SHOWN]) + more

    def _of(self, rank: int) -> str:
        """Describe a rank's last call; empty where nothing at all is known of the rank."""
        report = self.report(rank)
        if report is not None and report.calls:
            return last(report) + self._state(rank)
        if report is not None or self.roster is None or not self.board.log.count:
            return ""
        member = self.roster.members[rank]
        return f"nothing was heard from rank {rank} on {member.host} (pid {member.pid})"

    def report(self, rank: int, most: int = 1) -> Report | None:
        """Return the newest report about a rank, with its last calls."""
        if rank in self.board:
            return self.board.read(rank, most)
        if rank not in self._reports:
            return None
        report, heard = self._reports[rank]
        return report.later(time.monotonic() - heard, most)

    def _state(self, rank: int) -> str:
        """Describe the state of a rank's process, by the system or by the rank's own report."""
        report, state = self.report(rank), self.state(rank)
        if state:
            return f", and {state}"
        if report is not None and report.elsewhere is not None and report.elsewhere.age < _RECENT:
            return f", and waits in another store: {report.elsewhere.words}"
        return ""

    def state(self, rank: int) -> str:
        """Return the state of a rank's process; empty where it is unknown, or ordinary."""
        process = self.board.process(rank) if rank in self.board else None
        if process is not None:
            return process.state()
        return self._reports[rank][0].state if rank in self._reports else ""


def is_due(waited: float, looks: int) -> bool:
    """Whether a wait of so many seconds is to look at others' calls, after so many looks."""
    return waited >= LONG_SECONDS * (looks + 1)
