"""Times of the looks of a long wait, on a clock that may jump."""

from __future__ import annotations

import itertools

from ncclkv.comm.diagnosis.looks import LONG_SECONDS, Looks


def requests(times: list[float]) -> list[float]:
    """Return the times at which a wait that is polled at `times` requests reports."""
    looks, found = Looks(), []
    for waited in times:
        if looks.is_due(waited):
            if looks.is_request_due(waited):
                found.append(waited)
            looks = looks.next(waited)
    return found


def test_looks_follow_each_other_after_a_quarter_of_a_second() -> None:
    looks, found = Looks(), []
    for waited in (step / 100 for step in range(110)):
        if looks.is_due(waited):
            found.append(waited)
            looks = looks.next(waited)
    assert found == [0.25, 0.5, 0.75, 1.0]
    assert looks.made == 4


def test_a_jump_of_the_clock_is_followed_by_no_burst() -> None:
    found = requests([step / 100 for step in (*range(10), *range(500, 600))])
    assert found == [5.0, 5.25, 5.5, 5.75]


def test_requests_become_rare_and_do_not_end() -> None:
    found = requests([step / 4 for step in range(4 * 3000)])
    assert found[:8] == [LONG_SECONDS * step for step in range(1, 9)]
    assert all(late == 2 * early for early, late in itertools.pairwise(found[7:]))
    assert found[-1] > 1500
    assert len(found) < 20
