"""Comparison of the ranks' calls: finds the first call in which two ranks differ.

A rank reads the pages of its neighbours.  Ranks that share no memory gossip instead: each notice
holds any number of messages of three kinds.

=========  ====================================================================================
REPORT     a rank's last calls and its waits, as its page shows them
REQUEST    ranks whose reports the sender lacks
VERDICT    the difference that the sender has found; empty where it knows only that one exists
=========  ====================================================================================

==================  ===============================  ==========================================
state of this rank  event                            action
==================  ===============================  ==========================================
any                 REQUEST arrives                  send the REPORTs of those ranks whose
                                                     pages are readable here
any                 REPORT arrives                   keep it; compare it in `compare_reports`
                                                     once this rank has made as many calls
any                 VERDICT arrives                  raise it, unless the reports compared here
                                                     show a difference themselves
waiting             each 0.25 s of the wait,         compare the pages; send the own REPORT and
                    8 times at most                  a REQUEST to the awaited ranks without a
                                                     page here (`request_reports`)
waiting             a difference is found            send a VERDICT and the own REPORT with 256
                                                     calls to all ranks (`notify`); raise
waiting             a message has another digest     send an empty VERDICT and the own REPORT
                                                     to all; compare for 1 s; raise (`explain`)
waiting             the deadline passes              drop REPORTs older than this wait; send
                                                     REPORTs and a REQUEST to the other nodes;
                                                     await answers for 1 s (`collect_reports`);
                                                     raise
==================  ===============================  ==========================================
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ncclkv.comm.backoff import Backoff
from ncclkv.comm.diagnosis.flight_recorder import NBYTES, FlightRecorder
from ncclkv.comm.diagnosis.reports import (
    RecordedCall,
    Report,
    describe_last_call,
    first_difference,
    from_plain,
    to_plain,
)
from ncclkv.comm.roster import Roster
from ncclkv.comm.transport import Transport
from ncclkv.errors import OrderMismatch

DifferingKeys = Callable[[int, int], tuple[Any, Any]]

REPORT, REQUEST, VERDICT = "report", "request", "verdict"

VERDICT_CALLS, REPORT_CALLS = 256, 32
"""Calls in a report that goes with a verdict, and in any other: a program that is only slow must
not be slowed down by it."""

# Seconds to wait for the reports of others.
_PATIENCE = 1.0

# A rank at its own deadline may answer no more; a report this fresh is as good as an answer.
_FRESH_SECONDS = 0.5

LONG_SECONDS = 0.25
"""A wait is long from here on, and looks at others' calls each time it has lasted as long again."""

_MAX_REQUESTS = 8
_MAX_DESCRIBED = 8

# A wait outside the store that was shown longer ago may have ended.
_RECENT_SECONDS = 1.0

_RELAYED = " found: "

# Stands in a call's text for the keys that the text leaves out.
_ELLIPSIS = "..."


class CallComparison:
    """This rank's knowledge of the calls of all ranks of a store.

    Parameters
    ----------
    transport : Transport

    Attributes
    ----------
    recorder : FlightRecorder
        The readable pages; by default this rank's own.
    differing_keys : callable
        Returns ``differing_keys(first, second)``, or None.  That function takes the key codes of
        two calls and returns the key that only the first has, and the key that only the second
        has; None for a key that it cannot find.
    transport : Transport
    last_received : dict of int to float
        Times of the last notice from each rank, by ``time.monotonic()``.
    roster : Roster or None
        The ranks' descriptions of themselves, where they exchanged them.
    """

    roster: Roster | None = None

    def __init__(self, transport: Transport) -> None:
        self.recorder = FlightRecorder(transport.rank, {transport.rank: np.zeros(NBYTES, np.uint8)})
        self.differing_keys: Callable[[], DifferingKeys | None] = lambda: None
        self.transport = transport
        self.last_received: dict[int, float] = {}
        self._prefix = f"rank {transport.rank} of {transport.size}: "
        self._peers = [rank for rank in range(transport.size) if rank != transport.rank]
        self._reports: dict[int, tuple[Report, float]] = {}
        self._uncompared: dict[int, Report] = {}
        self._verdict = ""

    # Messages

    def request_reports(self, ranks: Collection[int], requests: int = 0) -> None:
        """Exchange reports with `ranks` that have no page here, unless 8 `requests` were made."""
        if requests >= _MAX_REQUESTS:
            return
        others = [rank for rank in ranks if rank not in self.recorder]
        self._post(others, [*self._own_reports([self.transport.rank]), (REQUEST, others)])

    def collect_reports(self, ranks: Collection[int], since: float) -> None:
        """Exchange reports with all ranks of other nodes, and await those about `ranks`.

        They also receive the reports of those of `ranks` that have pages here.  Answers may take
        one second altogether.

        Parameters
        ----------
        ranks : collection of int
        since : float
            Reports received before this ``time.monotonic()`` are dropped.
        """
        self._reports = {rank: each for rank, each in self._reports.items() if each[1] >= since}
        here = self.transport.rank
        far = [rank for rank in self._peers if rank not in self.recorder]
        if not far or not self.recorder.log.count:
            return
        wanted = [rank for rank in ranks if rank not in self.recorder]
        near = [rank for rank in ranks if rank in self.recorder and rank != here]
        self._post(far, [*self._own_reports([here, *near]), (REQUEST, wanted)])
        fresh = time.monotonic() - _FRESH_SECONDS
        for _ in Backoff(_PATIENCE, self.transport.pause):
            self.transport.left_ranks()
            self.receive()
            if all(self._reports.get(rank, (None, 0.0))[1] > fresh for rank in wanted):
                break

    def notify(self, verdict: str) -> None:
        """Send a verdict, which may be empty, and this rank's report to all ranks."""
        reports = self._own_reports([self.transport.rank], VERDICT_CALLS)
        self._post(self._peers, [*reports, (VERDICT, verdict)])

    def _own_reports(
        self, ranks: Iterable[int], max_calls: int = REPORT_CALLS
    ) -> list[tuple[str, Any]]:
        """Return the REPORT messages of ranks that have pages here."""
        reports = ((rank, self.recorder.read(rank, max_calls)) for rank in ranks)
        return [
            (REPORT, (rank, to_plain(report._replace(state=self.state(rank)))))
            for rank, report in reports
        ]

    def _post(self, peers: Iterable[int], messages: Sequence[tuple[str, Any]]) -> None:
        self.transport.post(pickle.dumps(messages), peers)

    def receive(self) -> None:
        """Take the notices from the transport's inbox, which `Transport.left_ranks` fills."""
        inbox = self.transport.inbox
        while inbox:
            peer, data = inbox.pop(0)
            self.last_received[peer] = time.monotonic()
            for kind, content in pickle.loads(data):
                self._take(peer, kind, content)

    def _take(self, peer: int, kind: str, content: Any) -> None:
        """Act on one message of a peer."""
        if kind == REPORT:
            rank, plain = content
            self._uncompared[rank] = report = from_plain(plain)
            self._reports[rank] = report, self.last_received[peer]
        elif kind == REQUEST:
            readable = [rank for rank in content if rank in self.recorder]
            if readable:
                self._post([peer], self._own_reports(readable))
        elif content:
            # A relayed verdict begins with the rank that relayed it; the finder stays named.
            relayed = _RELAYED in content
            self._verdict = (
                content.partition(": ")[2] if relayed else f"rank {peer}{_RELAYED}{content}"
            )

    # Comparing

    def ended_ranks(self) -> set[int]:
        """Return the ranks whose processes have ended, as far as this rank can see."""
        return {rank for rank in self._peers if self.transport.has_ended(rank)}

    def compare_reports(self) -> OrderMismatch | None:
        """Return the first difference between this rank's calls and the received reports."""
        self.receive()
        if not self._uncompared:
            return None
        found = self._compare(self._uncompared)
        if found is None and self._verdict:
            found = OrderMismatch(self._prefix + self._verdict)
        # A report that is ahead of this rank is kept until this rank has made those calls too.
        count = self.recorder.log.count
        for rank, report in [*self._uncompared.items()]:
            if not report.calls or report.calls[-1].number <= count:
                del self._uncompared[rank]
        return found

    def compare_pages(self) -> OrderMismatch | None:
        """Return the first difference between this rank's calls and its neighbours' pages."""
        neighbours = (rank for rank in self._peers if rank in self.recorder)
        return self._compare({rank: self.recorder.read(rank) for rank in neighbours})

    def _compare(self, reports: dict[int, Report]) -> OrderMismatch | None:
        """Return the first difference, of the lowest rank that differs."""
        mine = self.recorder.read(self.transport.rank)
        for rank, report in sorted(reports.items()):
            pair = first_difference(mine.calls, report.calls)
            if pair is not None:
                return OrderMismatch(self._prefix + self._describe(rank, *pair))
        return None

    def _describe(self, rank: int, mine: RecordedCall, theirs: RecordedCall) -> str:
        """Describe a difference: both calls, and keys that the texts leave out."""
        both = sorted([(self.transport.rank, mine), (rank, theirs)])
        calls = ", but ".join(f"rank {each} called {call.text}" for each, call in both)
        return (
            f"the ranks differ in call {mine.number} of this store: {calls}"
            f"{self._describe_keys(both)}; make the same calls in the same order on all ranks"
        )

    def _describe_keys(self, both: Sequence[tuple[int, RecordedCall]]) -> str:
        """Name the keys that only one of two calls has, where their texts leave keys out."""
        (_, first), (_, second) = both
        if first.code != second.code or _ELLIPSIS not in first.text + second.text:
            return ""
        differing_keys = self.differing_keys()
        found = (None, None) if differing_keys is None else differing_keys(first.keys, second.keys)
        keys = zip(both, found, strict=True)
        parts = [f"only rank {rank} has key {key!r}" for (rank, _), key in keys if key is not None]
        return f" ({', '.join(parts)})" if parts else ""

    def explain(self, error: OrderMismatch) -> OrderMismatch:
        """Return the first difference between the ranks' calls; `error`'s text without one.

        All ranks receive this rank's report.  The comparison may take one second.
        """
        if not self.recorder.log.count:
            return OrderMismatch(str(error))
        self.notify("")
        for _ in Backoff(_PATIENCE, self.transport.pause):
            self.transport.left_ranks()
            found = self.compare_pages() or self.compare_reports()
            if found is not None:
                return found
        return OrderMismatch(str(error))

    # Descriptions for errors

    def describe_calls(self, ranks: Iterable[int]) -> str:
        """Describe the last calls of ranks; empty where nothing about them is known."""
        known = [text for rank in sorted(ranks) if (text := self._describe_rank(rank))]
        more = f"; and {len(known) - _MAX_DESCRIBED} more" if len(known) > _MAX_DESCRIBED else ""
        return "; ".join(known[:_MAX_DESCRIBED]) + more

    def _describe_rank(self, rank: int) -> str:
        """Describe a rank's last call and its process."""
        report = self.report(rank)
        if report is not None and report.calls:
            return describe_last_call(report) + self._describe_state(rank)
        if report is not None or self.roster is None or not self.recorder.log.count:
            return ""
        member = self.roster.members[rank]
        return f"no report from rank {rank} on {member.host} (pid {member.pid}) has arrived"

    def report(self, rank: int, max_calls: int = 1) -> Report | None:
        """Return the newest report about a rank, with its last calls."""
        if rank in self.recorder:
            return self.recorder.read(rank, max_calls)
        if rank not in self._reports:
            return None
        report, received = self._reports[rank]
        return report.aged(time.monotonic() - received, max_calls)

    def _describe_state(self, rank: int) -> str:
        """Describe the state of a rank's process, or its wait outside the store."""
        report, state = self.report(rank), self.state(rank)
        if state:
            return f", and {state}"
        other = None if report is None else report.other_wait
        if other is not None and other.age < _RECENT_SECONDS:
            return f", and waits in another store: {other.description}"
        return ""

    def state(self, rank: int) -> str:
        """Return the state of a rank's process; empty where it is unknown, or ordinary."""
        process = self.recorder.process(rank) if rank in self.recorder else None
        if process is not None:
            return process.state()
        return self._reports[rank][0].state if rank in self._reports else ""


def is_due(waited: float, looks: int) -> bool:
    """Return whether a wait of `waited` seconds is due for another look, after `looks` looks."""
    return waited >= LONG_SECONDS * (looks + 1)
