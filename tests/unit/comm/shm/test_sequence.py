"""Times of arrival that two ranks of one process publish, and what reads as none."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ncclkv import concurrency
from ncclkv.comm.shm.sequence import DONE, ENTERED, NBYTES, RING, CollectiveSlot, SequenceTable

RANKS = [3, 5]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[SequenceTable]:
    """The tables of ranks 3 and 5; their clock shows 1, 2, 3 seconds and so on."""
    seconds = iter(range(1, 10 * RING))
    monkeypatch.setattr(concurrency, "monotonic_ns", lambda: next(seconds) * 10**9)
    pages = [np.zeros(NBYTES, np.uint8) for _ in RANKS]
    return [SequenceTable(pages, RANKS, index, lambda: None) for index in range(len(RANKS))]


def enter(table: SequenceTable, words: tuple[int, ...] = (8, 1)) -> CollectiveSlot:
    """Enter the next collective of a rank."""
    slot = table.next_slot()
    slot.write_header(words)
    slot.publish(ENTERED)
    return slot


def test_both_ranks_read_the_same_times(tables: list[SequenceTable]) -> None:
    second, first = enter(tables[1]), enter(tables[0])
    assert first.arrivals() == second.arrivals() == {3: 2.0, 5: 1.0}
    first.publish(DONE)
    assert second.arrivals() == {3: 2.0, 5: 1.0}


def test_no_times_before_all_have_entered(tables: list[SequenceTable]) -> None:
    first = enter(tables[0])
    assert first.arrivals() == {}
    tables[1].next_slot().write_header((8, 1))
    assert first.arrivals() == {}


def test_no_times_of_the_collective_that_has_the_slot_next(tables: list[SequenceTable]) -> None:
    first, second = enter(tables[0]), enter(tables[1])
    for slot in (first, second):
        slot.publish(DONE)
    for _ in range(RING - 1):
        tables[1].next_slot()
    later = enter(tables[1])
    assert later.is_free()
    assert first.arrivals() == {}
    assert later.arrivals() == {}


def test_no_times_of_a_collective_that_failed(tables: list[SequenceTable]) -> None:
    first, second = enter(tables[0]), enter(tables[1])
    second.fail()
    assert first.arrivals() == {}


def test_headers_leave_out_the_time(tables: list[SequenceTable]) -> None:
    """Prepared reductions compare headers with those of their last launch."""
    words = tuple(range(11, 19))
    first, second = enter(tables[0], words), enter(tables[1], words)
    digest = tables[0].digest.value
    assert first.headers() == second.headers() == [[digest, *words]] * 2


def test_a_time_is_of_the_clock_that_processes_share() -> None:
    page = np.zeros(NBYTES, np.uint8)
    before = time.monotonic()
    arrival = enter(SequenceTable([page], [0], 0, lambda: None)).arrivals()[0]
    assert before <= arrival <= time.monotonic()
