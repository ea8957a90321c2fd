"""Hang detector: a long wait for a rank without a page here, and ranks that have left meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkv.comm.diagnosis.farewells import FINISHED, RETURNED
from ncclkv.comm.diagnosis.hang import AwaitedWork, HangDetector, Progress
from ncclkv.errors import KVStoreError, RankLost
from tests.unit.comm.diagnosis.connected_ranks import note, ranks


class Sum(AwaitedWork):
    """A collective that waits for rank 1, until it arrives."""

    arrived = False

    def __str__(self) -> str:
        return "a sum"

    def missing(self) -> set[int]:
        return set() if self.arrived else {1}


def requests(times: list[float]) -> int:
    """Return the number of notices that a rank sends in a wait that is polled at `times`."""
    first, _ = ranks(2)
    note(first, 1)
    detector: Any = HangDetector(first)
    work = Sum()
    for waited in times:
        assert detector.diagnose(Progress(), work, waited) is None
    return len(first.transport.notified)


def test_a_rank_that_was_off_its_processor_does_not_use_up_its_requests() -> None:
    assert requests([5.0 + step / 1000 for step in range(20)]) == 1


def test_a_long_wait_still_requests_reports() -> None:
    assert requests([step / 4 for step in range(400)]) > requests([step / 4 for step in range(40)])


def test_a_wait_that_has_just_ended_writes_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = ranks(2)
    detector: Any = HangDetector(first)
    work = Sum()
    work.arrived = True
    detector.report(Progress(), work, 100.0, 300.0)
    assert capsys.readouterr().err == ""
    work.arrived = False
    detector.report(Progress(), work, 100.0, 300.0)
    assert "a sum waits for rank 1" in capsys.readouterr().err


def found(departed: dict[int, str]) -> KVStoreError | None:
    """Return what rank 0 of several nodes finds in a wait for rank 1, after ranks have left."""
    first, *_ = ranks(3)
    first.transport.departed = departed
    progress = Progress()
    progress.multi_node = True
    return HangDetector(first).diagnose(progress, Sum(), 0.5)


@pytest.mark.parametrize("farewell", [FINISHED, RETURNED])
def test_a_rank_that_has_made_its_last_call_is_not_lost(farewell: str) -> None:
    assert found({2: farewell}) is None


def test_a_lost_rank_is_named_although_another_one_is_awaited() -> None:
    error = found({2: "ValueError: no such file"})
    assert isinstance(error, RankLost)
    assert "rank 2 left while a sum waited for it; farewell: ValueError" in str(error)


def test_an_awaited_rank_that_follows_a_finished_one_is_named() -> None:
    error = found({1: f"RankLost: rank 1 of 3: rank 2 left; farewell: {FINISHED}", 2: FINISHED})
    assert isinstance(error, RankLost)
    assert (
        "rank 1 left while a sum waited for it; farewell: RankLost: rank 1 of 3: rank 2 left"
        in str(error)
    )
