"""The covering set of store cases leaves out no case, and names only existing cases."""

from __future__ import annotations

import pytest

from tests.conformance import CASES, MODULES, communicator_all
from tests.conformance.communicator_all import SWEEPS
from tests.conformance.covering import (
    COVERING,
    DIVIDED_MODULES,
    MANY_STEPS,
    PAIRED_MODULES,
    PLACED_MODULES,
    PLACEMENTS,
    SHARED_MODULES,
    SIZED_MODULES,
    SPLIT_MODULES,
    STREAM_MODULES,
    chosen,
)
from tests.harness.extent import VARIABLE
from tests.nccl.first_cases import FIRST


@pytest.fixture(autouse=True)
def covering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the choice of cases of this run."""
    monkeypatch.delenv(VARIABLE, raising=False)


NAMES = {case.name for case in CASES}
PLACING = {case.name for case in CASES if case.places}


def names(layout: str, *sizes: int, update_on: str = "every_rank") -> set[str]:
    """Return the names of the cases that run on a layout."""
    return {each.values[0].name for each in chosen(layout, *sizes) if each.values[2] == update_on}


@pytest.mark.parametrize(("layout", "size"), [("solo", 1), ("threads", 3), ("ranks", 5)])
def test_these_layouts_run_every_case_that_fits(layout: str, size: int) -> None:
    fitting = {case.name for case in CASES if case.fits(size)}
    assert names(layout, size) == fitting
    placed = {name for name in fitting - PLACING if name.partition(".")[0] in PLACED_MODULES}
    assert names(layout, size, update_on="root") == placed
    assert names(layout, size, update_on="sharded") == placed


@pytest.mark.parametrize(
    ("layout", "sizes"), [("threads", (1, 2, 3, 4)), ("ranks", (1, 2, 3, 4)), ("stand-in", (2, 3))]
)
def test_every_case_runs_on_each_kind_of_ranks(layout: str, sizes: tuple[int, ...]) -> None:
    cases = [each for each in CASES if layout != "stand-in" or not each.in_host_memory]
    assert names(layout, *sizes) == {c.name for c in cases if any(map(c.fits, sizes))}


def test_cases_that_set_the_placement_run_wherever_their_modules_do() -> None:
    modules = {name.partition(".")[0] for name in PLACING}
    for where, (every_rank, *others) in COVERING.items():
        for placed in others:
            assert placed & modules <= every_rank, where


def test_every_layout_runs_the_first_cases() -> None:
    few = {case.name for case in CASES if case.name in FIRST and case.needs != "torch"}
    for where in (*COVERING, "halves-3", "plain-3", "hosts-3"):
        layout, _, size = where.rpartition("-")
        fitting = {case.name for case in CASES if case.fits(int(size))}
        assert names(layout, int(size)) >= few & fitting, where


def test_torch_is_imported_on_one_layout_of_processes() -> None:
    torch = {case.name for case in CASES if case.needs == "torch"}
    found = {
        where: names(*where) & torch
        for where in (("ranks", 1), ("ranks", 2), ("ranks", 3), ("ranks", 4), ("nodes", 3))
    }
    assert {where for where, some in found.items() if some} == {("ranks", 3)}
    assert found["ranks", 3] == torch


def test_the_lists_name_what_is_there() -> None:
    named = (
        PLACED_MODULES
        | PAIRED_MODULES
        | SIZED_MODULES
        | SHARED_MODULES
        | SPLIT_MODULES
        | STREAM_MODULES
        | DIVIDED_MODULES
        | MANY_STEPS
    )
    assert set(MODULES) >= named
    assert NAMES >= FIRST
    assert communicator_all.CASES.keys() >= SWEEPS


def test_all_cases_run_everywhere_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    few = len(chosen("threads", 1, 2, 3, 4))
    monkeypatch.setenv(VARIABLE, "all")
    fitting = [case for case in CASES for size in (1, 2, 3, 4) if case.fits(size)]
    expected = sum(1 if case.places else len(PLACEMENTS) for case in fitting)
    assert len(chosen("threads", 1, 2, 3, 4)) == expected > 2 * few
