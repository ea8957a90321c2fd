"""Crossings of two stores: what proves that two ranks wait for each other, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkv import concurrency
from ncclkv.comm.diagnosis import crossing, flight_recorder
from ncclkv.comm.diagnosis.reports import EVERYONE
from tests.unit.comm.diagnosis.connected_ranks import note, ranks


def stores() -> tuple[Any, Any, Any, Any]:
    """Return two stores on two ranks: here and there of rank 0, then of rank 1, 2 calls each."""
    (here, here_1), (there, there_1) = ranks(2), ranks(2)
    for each in (here, here_1, there, there_1):
        note(each, 1, 2)
    there.store = there_1.store = "there"
    return here, there, here_1, there_1


def show(here_1: Any, call_index: int, store: str = "there") -> None:
    """Show on the page of rank 1 that it waits for every rank in another store."""
    here_1.recorder.record_other_wait("barrier()", [EVERYONE], store, call_index)


def found(here: Any, there: Any, here_1: Any, call_index: int = 3) -> bool:
    """Return whether rank 0 finds a crossing in its call `call_index`."""
    here_1.notify("")
    here.receive()
    return crossing.find(here, [there], call_index, {1}) is not None


def test_two_ranks_in_calls_that_the_other_has_not_made_have_crossed() -> None:
    here, there, here_1, there_1 = stores()
    note(here, 3)
    note(there_1, 3)
    show(here_1, 3)
    assert found(here, there, here_1)


def test_a_rank_that_shows_a_wait_for_a_call_made_here_has_not_crossed() -> None:
    here, there, here_1, _ = stores()
    note(there, 3)
    note(here, 3)
    show(here_1, 3)
    assert not found(here, there, here_1)


def test_a_rank_that_has_made_the_awaited_call_has_not_crossed() -> None:
    here, there, here_1, _ = stores()
    note(here, 3)
    note(here_1, 3)
    show(here_1, 3)
    assert not found(here, there, here_1)


def test_a_failed_wait_proves_nothing() -> None:
    here, there, here_1, _ = stores()
    note(here, 3)
    show(here_1, 3)
    here_1.recorder.retract_other_wait()
    assert not found(here, there, here_1)
    assert here.report(1).other_wait.description == "barrier()"


@pytest.mark.parametrize("store", ["", "a store that is not open here"[:16]])
def test_a_wait_in_a_store_that_is_not_open_here_proves_nothing(store: str) -> None:
    here, there, here_1, _ = stores()
    note(here, 3)
    show(here_1, 3, store)
    assert not found(here, there, here_1)


def test_a_creation_that_this_rank_has_not_begun_has_crossed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crossing, "creations", crossing.Counter())
    here, there, here_1, _ = stores()
    note(here, 3)
    name = f"{crossing.CREATION}12345678"
    show(here_1, 1, name)
    assert found(here, there, here_1)
    crossing.creations[name] += 1
    assert not found(here, there, here_1)


def test_calls_made_before_a_wait_was_shown_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a page's wait is read first: the rank may call and wait between two readings."""
    (own,) = ranks(1)
    read = flight_recorder.call_ring.read_count

    def count_then_move(page: memoryview) -> int:
        made = read(page)
        note(own, 1)
        own.recorder.record_other_wait("barrier()", [EVERYONE], "there", 3)
        return made

    monkeypatch.setattr(flight_recorder.call_ring, "read_count", count_then_move)
    report = own.recorder.read(0)
    assert report.made == 0
    assert report.other_wait is None


def test_a_half_written_wait_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the writer before the time, which it stores last."""
    (own,) = ranks(1)
    own.recorder.record_other_wait("barrier()", [EVERYONE], "there", 3)
    assert own.recorder.read(0).other_wait is not None
    with monkeypatch.context() as stopped:
        stopped.setattr(concurrency, "monotonic_ns", _stop)
        with pytest.raises(KeyboardInterrupt):
            own.recorder.record_other_wait("barrier()", [EVERYONE], "here", 4)
    assert own.recorder.read(0).other_wait is None


def _stop() -> int:
    raise KeyboardInterrupt
