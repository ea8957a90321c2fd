"""Waits between ranks, as far as one rank's pages and reports show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ncclkv.comm.diagnosis.mismatch import LONG_SECONDS, CallComparison
from ncclkv.comm.diagnosis.reports import Wait

# A wait is shown anew each `LONG_SECONDS`.
_FRESH = 2 * LONG_SECONDS


def chain(calls: CallComparison, ranks: Iterable[int]) -> dict[int, Sequence[int]]:
    """Return whom some ranks wait for, and whom those wait for.

    A rank that is not known to wait has an empty sequence.  This rank is left out.
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


def ends(calls: CallComparison, ranks: Collection[int]) -> set[int]:
    """Return the ranks at the ends of these chains, which wait for no other; else `ranks`."""
    return {rank for rank, others in chain(calls, ranks).items() if not others} or {*ranks}


def of_node(calls: CallComparison) -> dict[int, Wait]:
    """Return the other ranks of this node that wait now, with their waits."""
    others = [rank for rank in range(calls.transport.size) if rank != calls.transport.rank]
    waits = {rank: calls.board.read(rank, 1).wait for rank in others if rank in calls.board}
    return {rank: wait for rank, wait in waits.items() if wait and wait.age < _FRESH}


def is_reported(calls: CallComparison, waited: float) -> bool:
    """Return whether a lower rank of this node has waited for so many seconds, too."""
    return any(
        rank < calls.transport.rank and wait.seconds + wait.age > waited - _FRESH
        for rank, wait in of_node(calls).items()
    )


def silent(calls: CallComparison, since: float) -> list[tuple[int, ...]]:
    """Return the other nodes none of whose ranks has been heard since a time, or has left.

    Ranks ask each other only about the calls of a store: without any, no node counts as silent.
    """
    if calls.roster is None or not calls.board.log.count:
        return []
    heard = {rank for rank, when in calls.heard.items() if when >= since}
    heard |= {calls.transport.rank, *calls.transport.left_ranks()}
    return [node for node in calls.roster.nodes if heard.isdisjoint(node)]
