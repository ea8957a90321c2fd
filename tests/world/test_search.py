"""The search of seeds: what it prints of a failure, and how far it shrinks one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.world import arrays
from tests.world.__main__ import main
from tests.world.case import case_of, run
from tests.world.search import search
from tests.world.shrink import kind, shrunk


@pytest.fixture
def wrong_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model expect a sum that no store makes."""
    monkeypatch.setitem(arrays._OPS, "sum", lambda *args, **kw: np.add.reduce(*args, **kw) + 1)


def test_a_search_without_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:10"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == "seeds 0:10, at most 60 s"
    assert re.fullmatch(r"0:10: 10 seeds, \d+ points, \d+ s of the worlds' clocks, .* of CPU", last)


@pytest.mark.usefixtures("wrong_sums")
def test_a_failure_is_printed_with_its_program_and_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "0:50", "--no-shrink"]) == 1
    out = capsys.readouterr().out
    found = re.search(r"seed (\d+) fails: rank \d: WrongValue: ", out)
    assert found, out
    assert f"all of them: --replay {found[1]}" in out
    digest = re.search(r"SHA-256 of the trace: ([0-9a-f]{64})", out)
    assert f"Case(seed={found[1]}, program=Program(" in out
    assert main(["--replay", found[1]]) == 1
    replayed = capsys.readouterr().out
    assert digest
    assert digest[0] in replayed
    assert len(replayed.splitlines()) > len(out.splitlines())


@pytest.mark.usefixtures("wrong_sums")
def test_a_failure_shrinks_to_few_steps_with_the_same_complaint() -> None:
    report = search(range(50), 60.0)
    assert report.failed is not None
    smallest = shrunk(report.failed)
    assert len(smallest.program.steps) <= 2
    assert kind(run(smallest).complaint) == kind(report.complaint)
    assert "WrongValue" in report.complaint


def test_the_complaint_about_a_broken_program_begins_with_the_cause() -> None:
    broken = next(case for case in map(case_of, range(100)) if case.expectation is not None)
    steps = tuple(step for step in broken.program.steps if "Only" not in repr(step))
    sound = type(broken.program)(
        **{**vars(broken.program), "steps": tuple(s for s in steps if "Busy" not in repr(s))}
    )
    complaint = run(type(broken)(**{**vars(broken), "program": sound})).complaint
    assert kind(complaint) != ""
    assert broken.expectation is not None
    assert complaint.endswith(f"({broken.expectation.fault}, rank {broken.expectation.rank})")
