"""Waits between ranks: chains of ranks that wait for each other, from pages and reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ncclkv.comm.diagnosis.looks import LONG_SECONDS
from ncclkv.comm.diagnosis.mismatch import CallComparison
from ncclkv.comm.diagnosis.reports import Wait

# A waiting rank shows its wait anew each `LONG_SECONDS`.
_FRESH_SECONDS = 2 * LONG_SECONDS


def chain(calls: CallComparison, ranks: Iterable[int]) -> dict[int, Sequence[int]]:
    """Return which ranks each of `ranks` waits for, and which those wait for.

    A rank that shows no wait has an empty sequence.  This rank is left out.
    """
    found: dict[int, Sequence[int]] = {}
    left = sorted(ranks)
    while left:
        rank = left.pop(0)
        if rank not in found and rank != calls.transport.rank:
            report = calls.report(rank)
            found[rank] = report.wait.ranks if report and report.wait else ()
            left += found[rank]
    return found


def chain_ends(calls: CallComparison, ranks: Collection[int]) -> set[int]:
    """Return the ranks in the chains of `ranks` that wait for no rank; without any, `ranks`."""
    return {rank for rank, others in chain(calls, ranks).items() if not others} or {*ranks}


def of_node(calls: CallComparison) -> dict[int, Wait]:
    """Return the current waits of the other ranks of this node."""
    near = [rank for rank in calls.peers if rank in calls.recorder]
    waits = {rank: calls.recorder.read(rank, 1).wait for rank in near}
    return {rank: wait for rank, wait in waits.items() if wait and wait.age < _FRESH_SECONDS}


def is_reported(calls: CallComparison, waited: float) -> bool:
    """Return whether a lower rank of this node has waited for `waited` seconds too."""
    return any(
        rank < calls.transport.rank and wait.seconds + wait.age > waited - _FRESH_SECONDS
        for rank, wait in of_node(calls).items()
    )


def silent_nodes(calls: CallComparison, since: float) -> list[tuple[int, ...]]:
    """Return the nodes from which no notice has arrived since a time, and whose ranks are left.

    Ranks exchange notices about the calls of a store only: before its first call no node is silent.

    Parameters
    ----------
    calls : CallComparison
    since : float
        A ``concurrency.monotonic()``.
    """
    if calls.roster is None or not calls.recorder.log.count:
        return []
    heard_from = {rank for rank, when in calls.last_received.items() if when >= since}
    heard_from |= {calls.transport.rank, *calls.transport.left_ranks()}
    return [node for node in calls.roster.nodes if heard_from.isdisjoint(node)]
