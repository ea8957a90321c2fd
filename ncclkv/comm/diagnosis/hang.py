"""What a wait that lasts looks at: whose calls differ, who has left, and the deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ncclkv.comm.diagnosis import stall, waits
from ncclkv.comm.diagnosis.flight_recorder import EVERYONE
from ncclkv.comm.diagnosis.mismatch import LONG_SECONDS, CallComparison, is_due
from ncclkv.comm.diagnosis.reports import last
from ncclkv.comm.transport import PeerFailed, Transport
from ncclkv.comm.words import format_ranks
from ncclkv.errors import CommTimeout, KVStoreError, OrderMismatch, RankDied, RankLost
from ncclkv.system import abort

# A rank that waits for one that has left may be waited for itself, and cannot say so: so long is
# waited for it when another rank is known to have left.
_RELAY_SECONDS = 0.3

# Between two looks at neighbours' processes.
_DEAD_SECONDS = 5e-3

# A rank that sent nothing for so long before a deadline does not answer.
_ANSWER_SECONDS = 2.0

# In a shorter wait a rank has hardly been asked, and its silence means nothing.
_MEANINGFUL_SECONDS = 1.0

_ADVICE = "all ranks must make the same calls in the same order: look at what {} did instead"

# What a process sent before its end is looked for so long.
_ARRIVAL_SECONDS = 0.05

# When a message has failed, its peer's farewell or the end of its process is looked for so long.
_FAILED_SECONDS = 0.3


class AwaitedWork(Protocol):
    """A collective that this rank waits for.

    Attributes
    ----------
    finished : bool
        Whether it is complete on this rank.
    reports_requested : int
        How often the reports of missing ranks were requested for it.
    reported : int
        How many lines about it were due on stderr.
    """

    finished: bool
    reports_requested: int
    reported: int

    def missing(self) -> set[int]:
        """Return the ranks that it waits for."""


class Progress(Protocol):
    """The collectives in flight among which a work waits."""

    multi_node: bool
    """Whether a rank that is waited for may itself wait for others, by messages."""

    def progress(self) -> None:
        """Advance every collective in flight."""

    def missing(self, work: AwaitedWork) -> set[int]:
        """Return the ranks that `work` waits for."""

    def siblings(self) -> Sequence[Progress]:
        """Return the progress of this thread's other communicators."""

    def wait_elsewhere(self, words: str, names: Sequence[str]) -> None:
        """Show its ranks that this thread waits in another communicator."""


class HangDetector:
    """Finds out why a wait is in vain.

    Parameters
    ----------
    transport : Transport
    calls : Calls
    """

    def __init__(self, transport: Transport, calls: CallComparison) -> None:
        self._transport = transport
        self._calls = calls
        self._where = f"rank {transport.rank} of {transport.size}: "
        self._looked = 0.0
        self._ended: dict[int, float] = {}

    def trouble(self, flight: Progress, work: AwaitedWork, waited: float) -> KVStoreError | None:
        """What to raise when ranks' calls differ, or one that `work` needs has left."""
        departed = self._transport.left_ranks()
        found = self._calls.found() or self._long(flight, work, waited)
        if found is not None:
            self._calls.tell(str(found))
            return found
        relayed = flight.multi_node and waited > _RELAY_SECONDS
        dead = self._dead()
        if not (departed or dead):
            return None
        if relayed:
            # One that has closed in peace has left nobody waiting.
            dead = {rank for rank in dead if not self._calls.board.is_closing(rank)}
        gone = departed.keys() | dead
        if not relayed and flight.missing(work).isdisjoint(gone):
            return None
        flight.progress()  # what it sent before it left still counts
        missing = flight.missing(work)
        lost = gone if relayed and missing else missing & gone
        if not lost or work.finished:
            return None
        rank = min(lost, key=lambda rank: (abort.follows(departed.get(rank, "")), rank))
        if rank in departed:
            return self._left(rank, departed[rank], work)
        return self._died(rank, work)

    def _long(self, flight: Progress, work: AwaitedWork, waited: float) -> OrderMismatch | None:
        """How the calls of ranks differ; whom a long wait waits for is asked, now and then."""
        if not is_due(waited, work.reports_requested):
            return None
        missing = flight.missing(work)
        self._calls.board.wait_for(missing, str(work), waited)
        self._calls.ask(missing, work.reports_requested)
        work.reports_requested += 1
        names = [report.name for rank in missing if (report := self._calls.report(rank))]
        mine = self._calls.report(self._transport.rank)
        words = mine.calls[-1].text if mine and mine.calls else str(work)
        for other in flight.siblings():
            other.wait_elsewhere(words, names)
        return self._calls.look() or self._crossed(work, missing, waited)

    def _crossed(self, work: AwaitedWork, missing: set[int], waited: float) -> OrderMismatch | None:
        """Whether a rank waits for this one in another store, and neither can go on."""
        mine = self._calls.report(self._transport.rank)
        for rank in sorted(missing):
            report = self._calls.report(rank)
            if not (mine and mine.calls and report and report.elsewhere):
                continue
            elsewhere = report.elsewhere
            # Seen after this wait began to last: what this rank has launched is not what it lacks.
            waits_for_this = {mine.name, EVERYONE}.intersection(elsewhere.names)
            if waits_for_this and waited - elsewhere.age > LONG_SECONDS:
                return OrderMismatch(
                    f"{self._where}{work} waits for rank {rank}, which waits for this rank in "
                    f"another store: {elsewhere.words}; make the same calls, and use stores in the "
                    f"same order, on all ranks. "
                    f"{self._calls.last([self._transport.rank, rank])}"
                )
        return None

    def _dead(self) -> set[int]:
        """The neighbours whose processes ended a while ago: what they sent has arrived."""
        now = time.monotonic()
        if now - self._looked < _DEAD_SECONDS:
            return set()
        self._looked = now
        for rank in self._calls.dead():
            self._ended.setdefault(rank, now)
        return {rank for rank, since in self._ended.items() if now - since > _ARRIVAL_SECONDS}

    def _died(self, rank: int, work: AwaitedWork, report: str = "") -> RankDied:
        """Return the error to raise when a rank's process has ended."""
        process = self._calls.board.process(rank)
        how = "has ended" if process is None else process.end()
        roster = self._calls.roster
        where = f" on {roster.members[rank].host}" if roster and not self._last(rank) else ""
        return RankDied(
            f"{self._where}rank {rank}{where} {how} while {work} waited for it, and said nothing"
            f"{report}{self._last(rank)}"
        )

    def explained(self, work: AwaitedWork, error: OrderMismatch | PeerFailed) -> KVStoreError:
        """Return what to raise for an error of one message, once more is known."""
        if isinstance(error, OrderMismatch):
            return self._calls.explained(error)
        return self._failed(work, error)

    def _failed(self, work: AwaitedWork, failure: PeerFailed) -> KVStoreError:
        """Return what to raise when a message failed: why its peer left, if that becomes known."""
        begin, attempt, peer = time.monotonic(), 0, failure.peer
        report = f"; MPI reports: {failure.report}" if failure.report else ""
        while (waited := time.monotonic() - begin) < _FAILED_SECONDS:
            departed = self._transport.left_ranks()
            if peer in departed:
                return self._left(peer, departed[peer] + report, work)
            if waited > _ARRIVAL_SECONDS and peer in self._calls.dead():
                return self._died(peer, work, report)
            attempt += 1
            self._transport.pause(attempt)
        return RankLost(
            f"{self._where}the connection to rank {peer} broke while {work} waited for it{report}; "
            f"look at how rank {peer} ended, and at the network{self._last(peer)}"
        )

    def _last(self, rank: int) -> str:
        """A rank's last call, for the end of a message."""
        report = self._calls.report(rank)
        return f"; {last(report)}" if report and report.calls else ""

    def _left(self, rank: int, reason: str, work: AwaitedWork) -> KVStoreError:
        """What to raise when a rank has left for that reason."""
        if reason.startswith(OrderMismatch.__name__):
            return OrderMismatch(f"{self._where}rank {rank} left with {reason}")
        return RankLost(
            f"{self._where}rank {rank} left while {work} waited for it; it said: {reason}"
            f"{self._last(rank)}"
        )

    def late(
        self, work: AwaitedWork, missing: set[int], waited: float, limit: float
    ) -> CommTimeout:
        """What to raise when a wait has lasted too long."""
        calls = self._calls
        calls.board.wait_for(missing, str(work), waited)
        now = time.monotonic()
        calls.inquire([*waits.chain(calls, missing)], now - waited)
        chain, ends = waits.chain(calls, missing), waits.ends(calls, missing)
        # Calls that differ were found before: each of these ranks has sent what the others lack.
        circle = calls.board.log.count > 0 and bool(chain) and all(chain.values())
        silent = [
            node
            for node in waits.silent(calls, now - min(_ANSWER_SECONDS, limit / 2))
            if not ends.isdisjoint(node) and waited >= _MEANINGFUL_SECONDS
        ]
        unanswered = self._without_answer(ends, waited).difference(*silent)
        answering = ends.difference(unanswered, *silent)
        for rank in ends:
            calls.board.show_stacks(rank)
        parts = [
            *_links(chain),
            *map(self._silence, silent),
            self._unanswered(unanswered) if unanswered else "",
            self._lost(chain) if circle else "",
            _ADVICE.format(format_ranks(answering)) if answering and not circle else "",
            calls.last(ends),
            calls.last(chain.keys() - ends),
        ]
        return CommTimeout(
            f"{self._where}{work} waited {waited:.1f} s (timeout {limit:g} s) for "
            f"{format_ranks(missing)}; {'; '.join(filter(None, parts))}"
        )

    def report(self, flight: Progress, work: AwaitedWork, waited: float, limit: float) -> None:
        """Report a wait that lasts, for all ranks of this node, unless a lower one does."""
        if not stall.is_due(waited, limit, work.reported):
            return
        work.reported += 1
        calls, rank, missing = self._calls, self._transport.rank, flight.missing(work)
        calls.board.wait_for(missing, str(work), waited)
        if waits.is_reported(calls, waited):
            return
        # For all ranks of this node that wait, and perhaps for others than this one.
        near = {each: wait.ranks for each, wait in waits.of_node(calls).items()}
        needed = missing.union(*near.values())
        chain = {**near, **waits.chain(calls, needed)}
        parts = [*_links(chain), calls.last(waits.ends(calls, needed))]
        what = f"{work} waits for {format_ranks(missing)}"
        stall.report(
            rank, self._transport.size, what, waited, limit, "; ".join(filter(None, parts))
        )

    def _lost(self, chain: Mapping[int, Sequence[int]]) -> str:
        """Describe ranks that wait for each other, and have made the same calls."""
        ranks = {self._transport.rank, *chain}
        return (
            f"{format_ranks(ranks)} wait for each other, and have made the same calls: messages "
            f"between them are lost, or slower than the timeout allows; "
            f"{self._look_at_network(ranks)}"
        )

    def _without_answer(self, ranks: Iterable[int], waited: float) -> set[int]:
        """Return those ranks about whom neighbours of theirs, which were asked, have not answered.

        Ranks answer for neighbours whose pages they share.  Elsewhere a busy rank is silent, too.
        """
        calls, rank = self._calls, self._transport.rank
        shares = any(each in calls.board for each in range(self._transport.size) if each != rank)
        if calls.roster is None or not (calls.board.log.count and shares):
            return set()
        if waited < _MEANINGFUL_SECONDS:
            return set()
        members = calls.roster.members
        return {each for each in ranks if len(members[each].node) > 1 and not calls.report(each)}

    def _unanswered(self, ranks: set[int]) -> str:
        """Describe ranks about which questions had no answer, though their hosts are heard."""
        return (
            f"no question about {format_ranks(ranks)} was answered, though messages from there "
            f"arrive: some are lost, or slower than the timeout allows; "
            f"{self._look_at_network({self._transport.rank, *ranks})}"
        )

    def _look_at_network(self, ranks: Iterable[int]) -> str:
        """Return the advice to look at the network between the hosts of some ranks."""
        roster = self._calls.roster
        members = [] if roster is None else [roster.members[rank] for rank in sorted(ranks)]
        hosts = ", ".join(dict.fromkeys(member.host for member in members))
        return f"look at the network{' of ' if hosts else ''}{hosts}"

    def _silence(self, node: Sequence[int]) -> str:
        """Describe a node none of whose ranks answers."""
        roster = self._calls.roster
        host = "another host" if roster is None else roster.members[node[0]].host
        if len(node) == 1:
            return (
                f"rank {node[0]}, the only one on {host}, does not answer: the host or the link to "
                f"it is gone, or the rank is stopped, or busy outside the store"
            )
        return (
            f"no rank of {host} ({', '.join(map(str, node))}) answers: the host or the link to it "
            f"is gone, or all its ranks are stopped"
        )


def _links(chain: Mapping[int, Sequence[int]]) -> list[str]:
    """Describe whom ranks wait for that others wait for."""
    return [f"rank {rank} waits for {format_ranks(each)}" for rank, each in chain.items() if each]
