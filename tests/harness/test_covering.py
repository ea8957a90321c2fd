"""The covering set of store cases leaves out no case, and names only existing cases."""

from __future__ import annotations

import pytest

from tests.conformance import CASES, MODULES
from tests.conformance.covering import (
    PLACED_MODULES,
    PLACEMENTS,
    SIZED_MODULES,
    VARIABLE,
    WHOLE,
    chosen,
    covers,
)
from tests.nccl.first import FIRST


@pytest.fixture(autouse=True)
def covering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the choice of cases of this run."""
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("where", WHOLE)
def test_each_case_runs_on_each_kind_of_layout(where: str) -> None:
    layout, _, size = where.rpartition("-")
    left_out = [
        case.name
        for case in CASES
        if case.fits(int(size)) and not covers(case, layout, int(size), "every_rank")
    ]
    assert not left_out


def test_each_case_runs_on_ranks_that_are_processes_and_on_threads() -> None:
    threads = {each.values[0].name for each in chosen("threads", 1, 2, 3, 4)}
    assert threads == {case.name for case in CASES}
    assert {each.values[0].name for each in chosen("ranks", 4)} == threads


def test_the_lists_name_what_is_there() -> None:
    assert set(MODULES) >= PLACED_MODULES | SIZED_MODULES
    assert {case.name for case in CASES} >= FIRST


def test_all_cases_run_everywhere_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    few = len(chosen("threads", 1, 2, 3, 4))
    monkeypatch.setenv(VARIABLE, "all")
    fitting = sum(case.fits(size) for case in CASES for size in (1, 2, 3, 4))
    assert len(chosen("threads", 1, 2, 3, 4)) == len(PLACEMENTS) * fitting > 2 * few
