"""Comparison of the ranks' calls: finds the first call in which two ranks differ.

A rank reads the pages of its neighbours.  Ranks that share no memory send notices instead: each
notice holds any number of messages, of three kinds.

=========  ====================================================================================
REPORT     a rank's last calls and its waits, as its page shows them
REQUEST    ranks whose reports the sender lacks
VERDICT    the difference that the sender has found; empty if only its digest differs so far
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
waiting             0.25 s after its begin, and      compare the pages
                    after each look (`looks`)
waiting             at 8 looks, then each time       send the own REPORT and a REQUEST to the
                    that the wait has doubled        awaited ranks without a page here
                                                     (`request_reports`)
waiting             a difference is found            send a VERDICT and the own REPORT with 256
                                                     calls to all ranks (`notify`); raise; of
                                                     crossed stores, in the other store too
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
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ncclkv import concurrency
from ncclkv.comm.backoff import Backoff
from ncclkv.comm.diagnosis import item_lists
from ncclkv.comm.diagnosis.flight_recorder import NBYTES, FlightRecorder
from ncclkv.comm.diagnosis.reports import (
    FEWER_BATCHES,
    RecordedCall,
    Report,
    describe_last_call,
    first_difference,
    format_ranks,
)
from ncclkv.comm.diagnosis.roster import Roster
from ncclkv.comm.transport import Transport
from ncclkv.errors import OrderMismatch

DifferingKeys = Callable[[int, int], tuple[Any, Any]]

REPORT, REQUEST, VERDICT = "report", "request", "verdict"

VERDICT_CALLS, REPORT_CALLS = 256, 32
"""Counts of calls in a report beside a verdict, and in any other report.

Other reports are short, because a rank of a slow but correct program sends them too.
"""

# Seconds to wait for the reports of other ranks.
_PATIENCE = 1.0

# A rank at its own deadline may not answer; a report of this age is as good as an answer.
_FRESH_SECONDS = 0.5

_MAX_DESCRIBED = 8

# A wait outside the store that was shown longer ago may have ended.
_RECENT_SECONDS = 1.0

_RELAYED = " found: "

# Stands in a call's text for the keys that the text leaves out.
_ELLIPSIS = "..."


class CallComparison:
    """Compares this rank's calls with the pages and reports of the other ranks of a store.

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
    peers : list of int
        The other ranks.
    last_received : dict of int to float
        Times of the last notice from each rank, by ``concurrency.monotonic()``.
    roster : Roster or None
        The ranks' descriptions of themselves, where they exchanged them.
    store : str
        A name of the store, the same on all ranks; empty where they have agreed on none.
    """

    roster: Roster | None = None
    store: str = ""

    def __init__(self, transport: Transport) -> None:
        self.recorder = FlightRecorder(transport.rank, {transport.rank: np.zeros(NBYTES, np.uint8)})
        self.differing_keys: Callable[[], DifferingKeys | None] = lambda: None
        self.transport = transport
        self.last_received: dict[int, float] = {}
        self._prefix = f"rank {transport.rank} of {transport.size}: "
        self.peers = [rank for rank in range(transport.size) if rank != transport.rank]
        self._reports: dict[int, tuple[Report, float]] = {}
        self._uncompared: dict[int, Report] = {}
        self._verdict = ""

    # Messages

    def request_reports(self, ranks: Collection[int]) -> None:
        """Exchange reports with `ranks` that have no page here."""
        others = [rank for rank in ranks if rank not in self.recorder]
        self._post(others, [*self._own_reports([self.transport.rank]), (REQUEST, others)])

    def collect_reports(self, ranks: Collection[int], since: float) -> None:
        """Exchange reports with all ranks of other nodes, and await the reports about `ranks`.

        The other nodes also receive reports about the ranks of `ranks` that have pages here.  The
        call waits at most one second for all answers.

        Parameters
        ----------
        ranks : collection of int
        since : float
            Reports received before this ``concurrency.monotonic()`` are dropped.
        """
        self._reports = {rank: each for rank, each in self._reports.items() if each[1] >= since}
        here = self.transport.rank
        far = [rank for rank in self.peers if rank not in self.recorder]
        if not far or not self.recorder.log.count:
            return
        wanted = [rank for rank in ranks if rank not in self.recorder]
        near = [rank for rank in ranks if rank in self.recorder and rank != here]
        self._post(far, [*self._own_reports([here, *near]), (REQUEST, wanted)])
        fresh = concurrency.monotonic() - _FRESH_SECONDS
        for _ in Backoff(_PATIENCE, self.transport.pause):
            self.transport.left_ranks()
            self.receive()
            if all(self._reports.get(rank, (None, 0.0))[1] > fresh for rank in wanted):
                break

    def notify(self, verdict: str) -> None:
        """Send a verdict, which may be empty, and this rank's report to all ranks."""
        reports = self._own_reports([self.transport.rank], VERDICT_CALLS)
        self._post(self.peers, [*reports, (VERDICT, verdict)])

    def _own_reports(
        self, ranks: Iterable[int], max_calls: int = REPORT_CALLS
    ) -> list[tuple[str, Any]]:
        """Return the REPORT messages of ranks that have pages here."""
        return [
            (REPORT, (rank, self.recorder.read(rank, max_calls)._replace(state=self.state(rank))))
            for rank in ranks
        ]

    def _post(self, peers: Iterable[int], messages: Sequence[tuple[str, Any]]) -> None:
        self.transport.post(pickle.dumps(messages), peers)

    def receive(self) -> None:
        """Take the notices from the transport's inbox, which `Transport.left_ranks` fills."""
        inbox = self.transport.inbox
        while inbox:
            peer, data = inbox.pop(0)
            self.last_received[peer] = concurrency.monotonic()
            for kind, content in pickle.loads(data):
                self._take(peer, kind, content)

    def _take(self, peer: int, kind: str, content: Any) -> None:
        """Act on one message of a peer."""
        if kind == REPORT:
            rank, report = content
            self._uncompared[rank] = report
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
        """Return the ranks whose processes are known to have ended."""
        return {rank for rank in self.peers if self.transport.has_ended(rank)}

    def compare_reports(self) -> OrderMismatch | None:
        """Return the error of the first received report or verdict that differs; else None."""
        self.receive()
        if not self._uncompared:
            return None
        found = self._compare(self._uncompared)
        if found is None and self._verdict:
            found = OrderMismatch(self._prefix + self._verdict)
        # A report that is ahead of this rank is kept until this rank has made those calls too.
        count = self.recorder.log.count
        for rank, report in [*self._uncompared.items()]:
            if not report.calls or report.calls[-1].call_index <= count:
                del self._uncompared[rank]
        return found

    def compare_pages(self) -> OrderMismatch | None:
        """Return the error if a neighbour's page has other calls than this rank made; else None."""
        neighbours = (rank for rank in self.peers if rank in self.recorder)
        return self._compare({rank: self.recorder.read(rank) for rank in neighbours})

    def _compare(self, reports: dict[int, Report]) -> OrderMismatch | None:
        """Return the error about the lowest rank whose calls differ from this rank's; else None."""
        mine = self.recorder.read(self.transport.rank)
        for rank, report in sorted(reports.items()):
            pair = first_difference(mine.calls, report.calls)
            if pair is not None:
                return OrderMismatch(self._prefix + self._describe(rank, *pair), ranks=[rank])
        return None

    def _describe(self, rank: int, mine: RecordedCall, theirs: RecordedCall) -> str:
        """Describe a difference: both calls, and keys that the texts leave out."""
        both = sorted([(self.transport.rank, mine), (rank, theirs)])
        calls = ", but ".join(f"rank {each} called {call.text}" for each, call in both)
        closed = any(call.text.startswith("close(") for _, call in both)
        return (
            f"the ranks differ in call {mine.call_index} of this store: {calls}"
            f"{self._describe_keys(both) or _describe_items(both)}; make the same calls in the "
            f"same order on all ranks{f' ({FEWER_BATCHES})' * closed}{_describe_early_end(both)}"
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
        """Return the first difference between the ranks' calls; if none is found, `error`'s text.

        Some ranks may have made the same calls and then further calls, while the others are still
        in an earlier call: the text then has the first further calls.

        All ranks receive this rank's report.  The comparison may take one second.
        """
        if not self.recorder.log.count:
            return OrderMismatch(self._named(error), ranks=error.ranks)
        self.notify("")
        # A rank that waits in another store makes no report of its own accord.
        self.request_reports(self.peers)
        for _ in Backoff(_PATIENCE, self.transport.pause):
            self.transport.left_ranks()
            found = self.compare_pages() or self.compare_reports()
            if found is not None:
                return found
        here = self.transport.rank
        calls = self._describe_further_calls() or f"; {self.describe_calls([here])}"
        return OrderMismatch(f"{self._named(error)}{calls}", ranks=error.ranks)

    def _named(self, error: OrderMismatch) -> str:
        """Return the text of an error, with this rank in front."""
        is_named = str(error).startswith(f"rank {self.transport.rank}")
        return str(error) if is_named else f"{self._prefix}{error}"

    def _describe_further_calls(self) -> str:
        """Describe the first calls of ranks beyond the calls that another rank has made, too."""
        here = self.transport.rank
        known = {rank: self.report(rank, REPORT_CALLS) for rank in self.peers}
        calls = {rank: report.calls for rank, report in known.items() if report is not None}
        calls[here] = self.recorder.read(here).calls
        common = min(each[-1].call_index if each else 0 for each in calls.values())
        ranks: dict[str, int] = {}
        for rank, made in sorted(calls.items()):
            text = next((call.text for call in made if call.call_index == common + 1), "")
            ranks.setdefault(text, rank)
        found = [f"rank {rank} called {text}" for text, rank in ranks.items() if text]
        return f"; after the same calls {', '.join(found[:_MAX_DESCRIBED])}" if found else ""

    # Descriptions for errors

    def describe_calls(self, ranks: Iterable[int]) -> str:
        """Describe the last calls of ranks; empty where no report about them has arrived."""
        texts = [text for rank in sorted(ranks) if (text := self._describe_rank(rank))]
        more = f"; and {len(texts) - _MAX_DESCRIBED} more" if len(texts) > _MAX_DESCRIBED else ""
        return "; ".join(texts[:_MAX_DESCRIBED]) + more

    def _describe_rank(self, rank: int) -> str:
        """Describe a rank's last call, and its process or its wait outside the store."""
        report, state = self.report(rank), self.state(rank)
        if report is None:
            if self.roster is None or not self.recorder.log.count:
                return ""
            member = self.roster.members[rank]
            return f"no report from rank {rank} on {member.host} (pid {member.pid}) has arrived"
        if not report.calls:
            return ""
        other = report.other_wait
        if not state and other is not None and other.age < _RECENT_SECONDS:
            state = f"waits in another store: {other.description}"
        return describe_last_call(report) + (f", and {state}" if state else "")

    def report(self, rank: int, max_calls: int = 1) -> Report | None:
        """Return the newest report about a rank, with its last calls."""
        if rank in self.recorder:
            return self.recorder.read(rank, max_calls)
        if rank not in self._reports:
            return None
        report, received = self._reports[rank]
        return report.aged(concurrency.monotonic() - received, max_calls)

    def state(self, rank: int) -> str:
        """Return the state of a rank's process; empty where it is unknown, or ordinary."""
        process = self.recorder.process(rank)
        if process is not None:
            return process.state()
        return self._reports[rank][0].state if rank in self._reports else ""


def _describe_early_end(both: Sequence[tuple[int, RecordedCall]]) -> str:
    """Describe where to look if an exception has ended the block of a rank."""
    early = [rank for rank, call in both if call.text.startswith("early end ")]
    if not early:
        return ""
    return f" (an exception has ended the block of {format_ranks(early)}: look at the error there)"


def _describe_items(both: Sequence[tuple[int, RecordedCall]]) -> str:
    """Describe the first item in which the lists of two calls differ, where texts leave it out."""
    (rank, first), (other, second) = both
    if first.code != second.code or _ELLIPSIS not in first.text + second.text:
        return ""
    found = item_lists.describe_difference(first.items, second.items, (rank, other))
    return f" ({found})" if found else ""
