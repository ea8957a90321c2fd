"""Errors of broken programs on NCCL, where `docs/reliability.md` promises others than on hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import fsum

from tests.world.faults import TIMEOUT_SECONDS, Expectation
from tests.world.plan import Create, Only, Program

_MISMATCHES = {"OrderMismatch", "SpecMismatch"}
"""Classes of errors about calls that differ."""


def on_nccl(program: Program, expected: Expectation) -> Expectation:
    """Return what a broken program must raise on NCCL.

    A launch on NCCL does not wait for the other ranks, so a rank may be in a call of another store
    when a mismatch is found, or wait there in vain.  Ranks that wait for each other in two stores
    get an error at the deadline.  A wait in CuPy ends there without an exception, and the program
    may then wait in its next store.  A rank that by then has all sums that it needs closes its
    stores, and does not wait for the rank that has left.
    """
    limits = list(_timeouts(program))
    if not _MISMATCHES.intersection(expected.own) or len(limits) < 2:
        return expected
    found = replace(
        expected, own=(*expected.own, "RankLost"), others=(*expected.others, "RankLost")
    )
    late = replace(
        found,
        own=(*found.own, "CommTimeout"),
        others=(*found.others, "CommTimeout", ""),
        words=expected.words[:1],  # a rank that waits names the last calls of one store
        named=(),
        seconds=expected.seconds + fsum(limits) + TIMEOUT_SECONDS,
    )
    return replace(found, otherwise=late)


def _timeouts(program: Program) -> Iterator[float]:
    """Yield the timeouts of a program's stores, and of those that its steps create."""
    steps = [each.step if isinstance(each, Only) else each for each in program.steps]
    created = [each.plan for each in steps if isinstance(each, Create) and each.plan is not None]
    for plan in (*program.stores, *created):
        yield program.timeout if plan.timeout is None else plan.timeout
