"""Ranks that a wait was for, from sets of missing ranks at known times."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from ncclkv import concurrency
from ncclkv.comm.diagnosis.awaited import Awaited


class Log:
    """Records what an observer receives."""

    def __init__(self) -> None:
        self.waits: list[tuple[Any, ...]] = []

    def waiting(self, what: str, ranks: Collection[int]) -> None:
        self.waits.append(("waiting", {*ranks}))

    def blocked(self, what: str, ranks: Collection[int], seconds: float) -> None:
        self.waits.append(("blocked", {*ranks}, pytest.approx(seconds)))


@pytest.mark.parametrize(
    ("sets", "ranks"),
    [
        ([(0.0, {1, 2}), (0.3, {2})], {2}),
        # In its second phase a sum waits a moment for a rank that came early.
        ([(0.0, {1, 2}), (0.3, {2}), (0.399, {0})], {2}),
        ([(0.0, {3}), (0.01, set()), (0.399, {0})], {3}),
        ([(0.39, {0})], {0}),
        ([(0.02 * step, {*range(step, 20)}) for step in range(20)], {*range(19, 20)}),
    ],
)
def test_the_ranks_missing_last_for_a_good_part(
    monkeypatch: pytest.MonkeyPatch, sets: list[tuple[float, set[int]]], ranks: set[int]
) -> None:
    now = [10.0]
    monkeypatch.setattr(concurrency, "monotonic", lambda: now[0])
    log, work = Log(), SimpleNamespace(looks=SimpleNamespace(made=0))
    awaited = Awaited(log, 10.0)
    for time, missing in sets:
        now[0] = 10.0 + time
        awaited.note(work, missing)  # type: ignore[arg-type]
    now[0] = 10.4
    awaited.end(work)  # type: ignore[arg-type]
    (wait,) = log.waits
    assert wait[2] == 0.4
    assert wait[1] == ranks


def test_a_long_wait_is_reported_once_and_a_short_one_never() -> None:
    log, work = Log(), SimpleNamespace(looks=SimpleNamespace(made=1))
    awaited = Awaited(log, concurrency.monotonic())
    for _ in range(3):
        awaited.note(work, {1})  # type: ignore[arg-type]
    assert log.waits == [("waiting", {1})]
    log.waits.clear()
    now = concurrency.monotonic()
    Awaited(log, now + 1).end(work)  # type: ignore[arg-type]
    assert log.waits == []
