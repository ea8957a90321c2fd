"""A wait outside stores advances the collectives of the thread's open stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ncclkv.comm.diagnosis import dump
from ncclkv.comm.host.outside_wait import poll_outside
from ncclkv.comm.messages.progress import HostWork, ProgressEngine
from ncclkv.errors import OrderMismatch
from tests.harness.locks import is_held
from tests.unit.comm.messages.test_progress import Still


class StepCounter(HostWork):
    """A collective that records at each step that no other thread could advance it."""

    def __init__(self, engine: ProgressEngine) -> None:
        self.what = "a sum"
        self._progress = engine
        self.alone: list[bool] = []

    def advance(self) -> bool:
        self.alone.append(is_held(self._progress.lock))
        return False

    def blocked(self) -> bool:
        return False

    def missing(self) -> set[int]:
        return {1}


@pytest.fixture
def engine() -> Iterator[ProgressEngine]:
    made = ProgressEngine(Still(), timeout=1.0)
    yield made
    made.end(OrderMismatch("the test is over"))


def create() -> Iterator[float]:
    return poll_outside("create()", lambda transport: (), rank=0, size=4, limit=300.0)


def test_works_of_other_stores_are_advanced_by_one_thread_at_a_time(
    engine: ProgressEngine,
) -> None:
    work = StepCounter(engine)
    engine.launch(work)
    work.alone.clear()
    polls = create()
    for _ in range(2):
        next(polls)
    assert work.alone == [True]


def test_notices_are_received_by_one_thread_at_a_time(
    engine: ProgressEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []

    def found() -> OrderMismatch:
        held.append(is_held(engine.lock))
        return OrderMismatch("rank 1 waits for this one")

    monkeypatch.setattr(engine.calls, "compare_reports", found)
    monkeypatch.setattr(dump, "write", lambda *_: held.append(is_held(engine.lock)))
    with pytest.raises(OrderMismatch, match="rank 1 waits"):
        list(create())
    assert held == [True, True]
