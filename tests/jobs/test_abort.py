"""A failure of one rank ends the job at once, with a failure's exit code and the rank's name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.extent import combinations, some_or_all
from tests.harness.slow import stretched
from tests.jobs.conftest import Ended, Job

SECONDS = stretched(5.0)
"""Seconds from the failure to the end of the job."""

SIZE = 3
ONE, BUT_ONE = "1", "0,2"


def failed(ended: Ended) -> None:
    """Fail unless the job failed in time, with a message of ncclkv."""
    assert ended.code != 0, ended.err
    assert ended.seconds < SECONDS, ended.err
    assert ended.words, ended.err


def first_is_by(ended: Ended, ranks: str, reason: str) -> None:
    """Fail unless ncclkv's first line names one of `ranks`, and the reason."""
    first = ended.words[0]
    assert any(
        first.startswith(f"ncclkv: rank {rank} of {SIZE} on ") for rank in ranks.split(",")
    ), first
    # Before Python 3.11, in which exceptions have notes, the text has them in brackets.
    assert re.search(rf" failed, ending the job: {re.escape(reason)}( \[.*\])?$", first), first
    # not at the start of a line: several ranks may write at once
    assert reason in ended.err, f"no traceback ends with {reason}:\n{ended.err}"


@pytest.mark.parametrize(
    ("place", "ranks"), combinations(["before", "between", "updater", "with"], [ONE, BUT_ONE])
)
def test_an_exception(job: Job, place: str, ranks: str) -> None:
    ended = job("failing_rank.py", place, "raise", ranks, ranks=SIZE)
    failed(ended)
    first_is_by(ended, ranks, f"ValueError: told to fail {place}")
    if ranks == ONE:
        assert ended.err.startswith(f"ncclkv: rank 1 of {SIZE} on "), ended.err
        assert len(ended.words) == 1, "the ranks that were only told say nothing"
    assert f"rank {ended.words[0].split()[2]} got as far as {place}" in ended.out


@pytest.mark.parametrize("hook", ["alone", "torch"])
def test_an_exception_behind_a_hook_that_keeps_the_text(
    job: Job, hook: str, tmp_path: Path
) -> None:
    if hook == "torch":
        pytest.importorskip("torch", reason="torch is not installed: the extra `torch` has it")
    ended = job("held_text.py", hook, str(tmp_path / "store"), ranks=SIZE)
    failed(ended)
    first_is_by(ended, ONE, "ValueError: told to fail")
    assert "Traceback (most recent call last)" in ended.err


def test_an_exception_in_the_updater_of_the_root(job: Job) -> None:
    ended = job("failing_rank.py", "updater-of-root", "raise", "0", ranks=SIZE)
    failed(ended)
    first_is_by(ended, "0", "ValueError: told to fail updater-of-root")
    assert "in the updater, at key 'w' on rank 0" in ended.err


@pytest.mark.parametrize(
    ("place", "code", "ranks"),
    combinations(["between", "updater", "with"], ["0", "3"], [ONE, BUT_ONE]),
)
def test_an_exit_in_the_middle(job: Job, place: str, code: str, ranks: str) -> None:
    ended = job("failing_rank.py", place, code, ranks, ranks=SIZE)
    failed(ended)
    first = ended.words[0]
    # The rank that exits prints nothing, as it wanted; the ranks that miss it print its number.
    assert "failed, ending the job: RankLost: rank " in first
    assert any(f": rank {rank} left while " in first for rank in ranks.split(",")), first
    said = f"SystemExit: {code}" if place == "with" else "its process ended without closing"
    assert f"farewell: {said}" in first


def test_an_exit_in_the_updater_of_the_root(job: Job) -> None:
    ended = job("failing_rank.py", "updater-of-root", "3", "0", ranks=SIZE)
    failed(ended)
    assert ": rank 0 left while " in ended.words[0]


@pytest.mark.parametrize("code", ["0", "3"])
def test_an_exit_of_all_ranks_is_no_failure(job: Job, code: str) -> None:
    ended = job("failing_rank.py", "between", code, "0,1", ranks=2)
    assert ended.code == int(code), ended.err
    assert ended.seconds < SECONDS
    assert not ended.words, ended.err


def test_an_exit_after_the_last_step(job: Job) -> None:
    ended = job("failing_rank.py", "at-the-end", "0", "1", ranks=2)
    assert ended.code == 0, ended.err
    assert not ended.err


def test_ctrl_c_on_one_rank(job: Job) -> None:
    ended = job("failing_rank.py", "between", "interrupt", "2", ranks=SIZE)
    failed(ended)
    first_is_by(ended, "2", "KeyboardInterrupt")


@pytest.mark.parametrize("ranks", some_or_all([ONE], [ONE, BUT_ONE]))
def test_without_the_hook_the_other_ranks_are_notified(job: Job, ranks: str) -> None:
    ended = job("failing_rank.py", "between", "raise", ranks, ranks=SIZE, NCCLKV_ABORT="0")
    assert ended.code != 0, ended.err
    assert ended.seconds < SECONDS
    assert not ended.words, "NCCLKV_ABORT=0 silences the hook"
    # not at the start of a line: several ranks may write at once
    assert "ValueError: told to fail between" in ended.err
    assert any(
        f"RankLost: rank {0 if ranks == ONE else 1} of {SIZE}: rank {rank} left" in ended.err
        for rank in ranks.split(",")
    ), ended.err
