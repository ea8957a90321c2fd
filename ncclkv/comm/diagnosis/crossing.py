"""Crossing: two ranks that wait for each other in two stores, proven by the indices of calls.

A rank may lose its processor between any two steps.  So a time on a page is later than the state
that it describes, and no comparison of times proves a crossing.  Indices of calls only grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from ncclkv.comm.diagnosis.mismatch import CallComparison
from ncclkv.comm.diagnosis.reports import EVERYONE, OtherWait

creations: Counter[str] = Counter()
"""Count of communicators that this process has begun to create, by a name of their ranks."""

CREATION = "create "
"""Every key of `creations` begins so, and no name of a store."""


def find(
    calls: CallComparison, others: Iterable[CallComparison], call_index: int, ranks: Collection[int]
) -> tuple[int, OtherWait] | None:
    """Return the lowest of `ranks` that waits for this rank in another store, and its wait.

    The other rank waits in a call that this rank has not made, and has not made the awaited call
    of this store.  A wait in a store that this thread does not have open proves nothing.

    Parameters
    ----------
    calls : CallComparison
    others : iterable of CallComparison
        Those of this thread's other stores.
    call_index : int
        The index of the call that launched the awaited collective; 0 outside a store.
    ranks : collection of int
        The ranks that the collective waits for.
    """
    made = {each.store: each.recorder.log.count for each in others if each.store}
    mine = calls.recorder.read(calls.transport.rank, 1)
    for rank in sorted(ranks):
        report = calls.report(rank)
        if report is None or report.other_wait is None or report.made >= call_index:
            continue
        other = report.other_wait
        here = made.get(other.store, other.call_index)
        if other.store.startswith(CREATION):
            here = creations[other.store]
        if here < other.call_index and {mine.name, EVERYONE}.intersection(other.names):
            return rank, other
    return None
