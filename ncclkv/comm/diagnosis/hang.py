"""Hang detector: finds out why a wait does not end, and reports a long wait before its deadline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ncclkv import concurrency
from ncclkv.comm.backoff import Backoff
from ncclkv.comm.diagnosis import crossing, stall, waits
from ncclkv.comm.diagnosis.farewells import is_finished, left_error
from ncclkv.comm.diagnosis.looks import Looks
from ncclkv.comm.diagnosis.mismatch import CallComparison
from ncclkv.comm.diagnosis.reports import describe_last_call, format_ranks
from ncclkv.comm.transport import PeerFailed
from ncclkv.errors import (
    CommTimeout,
    KVStoreError,
    OrderMismatch,
    RankDied,
    RankLost,
)
from ncclkv.system import abort

# If rank A waits for rank B, and B waits for a rank that has left, then B raises an error.  A gives
# B this many seconds before A raises an error of its own.
_RELAY_SECONDS = 0.3

# Seconds between two polls of the neighbours' processes.
_PROCESS_SECONDS = 5e-3

# A rank without a notice in the last seconds before the deadline counts as silent.
_ANSWER_SECONDS = 2.0

# In a shorter wait an answer may still be under way: a silent rank is no proof of a failure.
_MEANINGFUL_SECONDS = 1.0

# Messages that a process sent before its end still arrive within this time.
_ARRIVAL_SECONDS = 0.05

# Within this time after a failed message, the peer's farewell or the end of its process appears.
_FAILED_SECONDS = 0.3

_ADVICE = "all ranks must make the same calls in the same order: look at what {} did instead"


class AwaitedWork(Protocol):
    """A collective that a rank waits for; its ``str`` describes it.

    Attributes
    ----------
    finished : bool
    looks : Looks
        The looks of this wait at the other ranks' calls.
    reported : int
        Count of lines that were due on stderr about this wait.
    call : int
        The index of the store's call that launched it; 0 outside a store.
    """

    finished: bool = False
    looks: Looks = Looks()
    reported: int = 0
    call: int = 0

    @abstractmethod
    def missing(self) -> set[int]:
        """Return the ranks that the collective waits for."""


class Progress:
    """The collectives in flight of a communicator; these defaults are for one that needs no calls.

    Attributes
    ----------
    multi_node : bool
        Whether an awaited rank may itself wait for other ranks, by messages.
    calls : CallComparison
    """

    multi_node = False
    calls: CallComparison

    def advance(self) -> None:
        """Advance every collective as far as its messages allow."""

    def obstacle(self, work: AwaitedWork) -> AwaitedWork:
        """Return the collective that waits for other ranks: `work`, or an earlier one."""
        return work

    def missing(self, work: AwaitedWork) -> set[int]:
        """Return the ranks that `work`, or an earlier collective that it needs, waits for."""
        return self.obstacle(work).missing()

    def siblings(self) -> Sequence[Progress]:
        """Return this thread's other communicators."""
        return ()

    def show_other_wait(
        self, description: str, names: Sequence[str], store: str = "", call_index: int = 0
    ) -> None:
        """Show to this communicator's ranks that its thread waits in another one."""


class HangDetector:
    """Diagnoses the waits of one communicator.

    Parameters
    ----------
    calls : CallComparison
    """

    def __init__(self, calls: CallComparison) -> None:
        self._transport = transport = calls.transport
        self._calls = calls
        self._prefix = f"rank {transport.rank} of {transport.size}: "
        self._polled = 0.0
        self._ended: dict[int, float] = {}

    def diagnose(self, progress: Progress, work: AwaitedWork, waited: float) -> KVStoreError | None:
        """Return the error to raise when calls differ, or a rank that `work` needs has left."""
        departed = self._transport.left_ranks()
        found = self.compare(progress, work, waited)
        if found is not None:
            return found
        # On several nodes, an awaited rank may itself wait for a rank that has left.
        indirect = progress.multi_node and waited > _RELAY_SECONDS
        ended = self._ended_ranks()
        if not (departed or ended):
            return None
        absent = departed.keys() | ended
        if not indirect and progress.missing(work).isdisjoint(absent):
            return None
        progress.advance()  # messages that a rank sent before it left still count
        missing = progress.missing(work)
        lost = missing & absent
        if indirect and missing:
            # A rank that waits for one that has finished raises an error, and leaves.
            finished = self._finished(absent, departed)
            lost |= absent - finished
        if not lost or work.finished:
            return None
        rank = min(lost, key=lambda rank: (abort.follows(departed.get(rank, "")), rank))
        if rank in departed:
            return self._left_error(rank, departed[rank], work)
        return self._died_error(rank, work)

    def _finished(self, absent: Iterable[int], departed: Mapping[int, str]) -> set[int]:
        """Return the absent ranks that ended normally: all their calls may be complete."""
        closing = self._calls.recorder.is_closing
        return {rank for rank in absent if is_finished(departed.get(rank, "")) or closing(rank)}

    def compare(self, progress: Progress, work: AwaitedWork, waited: float) -> OrderMismatch | None:
        """Return the first difference between the ranks' calls; all ranks receive it."""
        found = self._calls.compare_reports() or self._look(progress, work, waited)
        if found is not None:
            self._calls.notify(str(found))
        return found

    def _look(self, progress: Progress, work: AwaitedWork, waited: float) -> OrderMismatch | None:
        """Compare call histories; in a long wait, periodically request those of missing ranks."""
        if not work.looks.is_due(waited):
            return None
        obstacle, calls = progress.obstacle(work), self._calls
        missing = obstacle.missing()
        calls.recorder.record_wait(missing, str(work), waited)
        if work.looks.is_request_due(waited):
            calls.request_reports(missing)
        work.looks = work.looks.next(waited)
        names = [report.name for rank in missing if (report := calls.report(rank))]
        mine = calls.report(self._transport.rank)
        description = mine.calls[-1].text if mine and mine.calls else str(work)
        for other in progress.siblings():
            other.show_other_wait(description, names, calls.store, obstacle.call)
        return calls.compare_pages() or self._crossed_stores(progress, work, obstacle.call, missing)

    def _crossed_stores(
        self, progress: Progress, work: AwaitedWork, call_index: int, missing: set[int]
    ) -> OrderMismatch | None:
        """Return an error when a missing rank waits for this rank in another store."""
        others = [each.calls for each in progress.siblings()]
        found = crossing.find(self._calls, others, call_index, missing)
        if found is None:
            return None
        rank, other = found
        error = OrderMismatch(
            f"{self._prefix}{work} waits for rank {rank}, which waits for this rank in another "
            f"store: {other.description}; make the same calls, and use stores in the same order, "
            f"on all ranks. {self._calls.describe_calls([self._transport.rank, rank])}",
            ranks=[rank],
        )
        for each in others:
            if each.store == other.store:  # the rank there may look next when this rank has left
                each.notify(str(error))
        return error

    def _ended_ranks(self) -> set[int]:
        """Return the ranks whose processes were found ended more than 50 ms ago.

        By then all messages of these ranks have arrived.  A call less than 5 ms after the last poll
        of the processes returns an empty set.
        """
        now = concurrency.monotonic()
        if now - self._polled < _PROCESS_SECONDS:
            return set()
        self._polled = now
        for rank in self._calls.ended_ranks():
            self._ended.setdefault(rank, now)
        return {rank for rank, since in self._ended.items() if now - since > _ARRIVAL_SECONDS}

    def explain(self, work: AwaitedWork, error: OrderMismatch | PeerFailed) -> KVStoreError:
        """Return the error to raise for an error of a message: its cause, if found."""
        if isinstance(error, OrderMismatch):
            return self._calls.explain(error)
        peer = error.peer
        report = f"; MPI reports: {error.report}" if error.report else ""
        for waited in Backoff(_FAILED_SECONDS, self._transport.pause):
            departed = self._transport.left_ranks()
            if peer in departed:
                return self._left_error(peer, departed[peer] + report, work)
            if waited > _ARRIVAL_SECONDS and peer in self._calls.ended_ranks():
                return self._died_error(peer, work, report)
        return RankLost(
            f"{self._prefix}the connection to rank {peer} broke while {work} waited for it{report};"
            f" look at how rank {peer} ended, and at the network{self._last_call(peer)}",
            ranks=[peer],
        )

    def _left_error(self, rank: int, reason: str, work: AwaitedWork) -> KVStoreError:
        """Return the error to raise when a rank left for `reason`."""
        waiting = f"{work} waited for it"
        return left_error(rank, reason, waiting, self._prefix, self._last_call(rank))

    def _died_error(self, rank: int, work: AwaitedWork, report: str = "") -> RankDied:
        """Return the error to raise when a rank's process ended without a farewell."""
        process = self._calls.recorder.process(rank)
        how = "has ended" if process is None else process.end()
        roster, last_call = self._calls.roster, self._last_call(rank)
        host = f" on {roster.members[rank].host}" if roster and not last_call else ""
        return RankDied(
            f"{self._prefix}rank {rank}{host} {how} while {work} waited for it, and sent no "
            f"farewell{report}{last_call}",
            ranks=[rank],
        )

    def _last_call(self, rank: int) -> str:
        """Describe a rank's last call, for the end of a message."""
        report = self._calls.report(rank)
        return f"; {describe_last_call(report)}" if report and report.calls else ""

    def timeout_error(
        self, work: AwaitedWork, missing: set[int], waited: float, limit: float
    ) -> CommTimeout:
        """Return the error to raise at the deadline; it may collect reports for one second."""
        calls = self._calls
        calls.recorder.record_wait(missing, str(work), waited)
        now = concurrency.monotonic()
        calls.collect_reports([*waits.chain(calls, missing)], now - waited)
        chain, ends = waits.chain(calls, missing), waits.chain_ends(calls, missing)
        # A difference would have been found: each of these ranks has sent what the others lack.
        circle = calls.recorder.log.count > 0 and bool(chain) and all(chain.values())
        silent = [
            node
            for node in waits.silent_nodes(calls, now - min(_ANSWER_SECONDS, limit / 2))
            if not ends.isdisjoint(node) and waited >= _MEANINGFUL_SECONDS
        ]
        unanswered = self._unanswered(ends, waited).difference(*silent)
        answering = ends.difference(unanswered, *silent)
        for rank in ends:
            calls.recorder.show_stacks(rank)
        parts = [
            *_describe_chain(chain),
            *map(self._describe_silent_node, silent),
            self._describe_unanswered(unanswered) if unanswered else "",
            self._describe_lost_messages(chain) if circle else "",
            _ADVICE.format(format_ranks(answering)) if answering and not circle else "",
            calls.describe_calls(ends),
            calls.describe_calls(chain.keys() - ends),
        ]
        return CommTimeout(
            f"{self._prefix}{work} waited {waited:.1f} s (timeout {limit:g} s) for "
            f"{format_ranks(missing)}; {'; '.join(filter(None, parts))}",
            ranks=missing,
        )

    def report(self, progress: Progress, work: AwaitedWork, waited: float, limit: float) -> None:
        """Write a line about a long wait, unless a lower rank of this node writes it."""
        if not stall.is_due(waited, limit, work.reported):
            return
        calls, rank, missing = self._calls, self._transport.rank, progress.missing(work)
        if not missing:  # the last rank has just arrived: the line would name no rank
            return
        work.reported = stall.lines_after(waited, limit)
        calls.recorder.record_wait(missing, str(work), waited)
        if waits.is_reported(calls, waited):
            return
        awaited, details = self._describe_wait(missing)
        description = f"{work} waits for {awaited}"
        stall.write_line(rank, self._transport.size, description, waited, limit, details)

    def _describe_wait(self, missing: set[int]) -> tuple[str, str]:
        """Return the awaited ranks, and details about them, for a line about a long wait."""
        # The line covers all waiting ranks of this node, whose awaited ranks may be others.
        calls = self._calls
        near = {each: wait.ranks for each, wait in waits.of_node(calls).items()}
        needed = missing.union(*near.values())
        chain = {**near, **waits.chain(calls, needed)}
        parts = [*_describe_chain(chain), calls.describe_calls(waits.chain_ends(calls, needed))]
        return format_ranks(missing), "; ".join(filter(None, parts))

    def _unanswered(self, ranks: Iterable[int], waited: float) -> set[int]:
        """Return the ranks of `ranks` about which no request for a report was answered.

        The neighbours of a rank can read its page, and answer for it.  A rank that shares no page
        is left out: it does not answer while it is busy, which is no failure.
        """
        calls, recorder, rank = self._calls, self._calls.recorder, self._transport.rank
        shares = any(each in recorder for each in range(self._transport.size) if each != rank)
        if waited < _MEANINGFUL_SECONDS or not (calls.roster and recorder.log.count and shares):
            return set()
        members = calls.roster.members
        return {each for each in ranks if len(members[each].node) > 1 and not calls.report(each)}

    def _describe_lost_messages(self, chain: Mapping[int, Sequence[int]]) -> str:
        """Describe ranks that wait for each other after the same calls."""
        ranks = {self._transport.rank, *chain}
        return (
            f"{format_ranks(ranks)} wait for each other, and have made the same calls: messages "
            f"between them are lost, or slower than the timeout allows; {self._advise(ranks)}"
        )

    def _describe_unanswered(self, ranks: set[int]) -> str:
        """Describe ranks of `_unanswered`, from whose hosts other messages have arrived."""
        return (
            f"no request for reports of {format_ranks(ranks)} was answered, though messages from "
            f"there arrive: some are lost, or slower than the timeout allows; "
            f"{self._advise({self._transport.rank, *ranks})}"
        )

    def _advise(self, ranks: Iterable[int]) -> str:
        """Return a clause of an error: the advice to look at the network of these ranks' hosts."""
        roster = self._calls.roster
        members = [] if roster is None else [roster.members[rank] for rank in sorted(ranks)]
        hosts = ", ".join(dict.fromkeys(member.host for member in members))
        return f"look at the network{' of ' if hosts else ''}{hosts}"

    def _describe_silent_node(self, node: Sequence[int]) -> str:
        """Describe a node from which nothing arrives."""
        roster = self._calls.roster
        host = "another host" if roster is None else roster.members[node[0]].host
        if len(node) == 1:
            silence = f"rank {node[0]}, the only one on {host}, does not answer"
            cause = "the rank is stopped, or busy outside the store"
        else:
            silence = f"no rank of {host} ({', '.join(map(str, node))}) answers"
            cause = "all its ranks are stopped"
        return f"{silence}: the host or the link to it is gone, or {cause}"


def _describe_chain(chain: Mapping[int, Sequence[int]]) -> list[str]:
    """Describe the waits of ranks that are awaited themselves."""
    return [f"rank {rank} waits for {format_ranks(each)}" for rank, each in chain.items() if each]
