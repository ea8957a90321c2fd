"""A test that ends its process counts as one failure, and the rest of its run continues."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import run
from tests.harness import rounds
from tests.harness.progress import Record
from tests.suite import Run

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = "tests/harness/samples/loses_two.py"
# The plugin of Hypothesis takes a tenth of a second to import.
OPTIONS = ("--color=no", "-p", "no:hypothesispytest")

pytestmark = pytest.mark.limit(100)


def test_a_test_past_its_limit_is_lost_alone(monkeypatch, capfd):
    monkeypatch.setenv("NCCLKV_TEST_SLOW", "1")
    command = (sys.executable, "-m", "pytest", *OPTIONS, SAMPLE)
    result = run.execute(Run("sample", command, 90))
    text = capfd.readouterr().out
    never, crashes = f"{SAMPLE}::test_that_never_ends", f"{SAMPLE}::test_that_crashes"
    assert f"{never} ended its process (exit code 1); the others go on" in text
    assert f"{crashes} ended its process (exit code 3); the others go on" in text
    assert "AssertionError: reached" in text
    assert "1 failed, 4 deselected" in text, text
    assert result.startswith(f"FAILED: lost {never}, {crashes}"), result


def test_ranks_go_on_together_behind_a_deadlock(monkeypatch, capfd):
    monkeypatch.setenv("NCCLKV_TEST_SLOW", "1")
    command = ("launch/local.sh", "-n", "2", "-m", "pytest", *OPTIONS)
    samples = "tests/harness/samples/"
    both = (f"{samples}deadlocks.py", f"{samples}all_pass.py")
    result = run.execute(Run("sample", (*command, *both), 90))
    text = capfd.readouterr().out
    assert "1 passed, 1 skipped, 1 deselected, 1 xfailed" in text, text
    assert result.startswith(f"FAILED: lost {both[0]}::test_one_rank_waits_for_ever"), result


def test_what_ends_every_round_ends_the_run():
    starts: list[Sequence[str]] = []

    def start(command: Sequence[str]) -> int:
        starts.append(command)
        record = next(word for word in command if word.startswith("--record="))
        Path(record.removeprefix("--record=")).write_text(f"begin test {len(starts)}\n")
        return 9

    outcome = rounds.run(("pytest",), start)
    assert len(starts) == rounds.MOST_LOST
    assert (outcome.code, len(outcome.lost)) == (1, rounds.MOST_LOST)


@pytest.mark.parametrize("code", [0, 1, 2, 4])
def test_a_run_that_loses_no_test_is_started_once(code, tmp_path):
    starts = []
    outcome = rounds.run(("pytest",), lambda command: starts.append(command) or code)
    assert (outcome.code, outcome.lost, len(starts)) == (code, (), 1)
    assert rounds.run(("true",), lambda command: code).code == code


def test_a_record_names_the_test_that_was_begun_last(tmp_path):
    file = tmp_path / "record"
    assert Record.read(file) == Record((), "")
    file.write_text("begin a::b c\nbegin d\n")
    assert Record.read(file) == Record(("a::b c", "d"), "d")
    file.write_text("begin a\nfinished\n")
    assert Record.read(file) == Record(("a",), "")


def test_jobs_inside_a_test_write_no_record(tmp_path):
    """The record's path is an option, because jobs inside a test would inherit a variable."""
    record = tmp_path / "record"
    command = (sys.executable, "-m", "pytest", *rounds.PLUGIN, f"--record={record}")
    done = subprocess.run(
        (*command, "tests/harness/test_ranks.py", "-k", "one_rank_needs_no_launcher"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    name = "tests/harness/test_ranks.py::test_one_rank_needs_no_launcher"
    assert record.read_text() == f"begin {name}\nfinished\n"
