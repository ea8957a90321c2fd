"""Layer 3b: a device that stops, and an NCCL that is slow, fails, hangs or dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.job import Ended
from tests.harness.slow import stretched
from tests.nccl.emulated import jobs

pytestmark = pytest.mark.limit(60)

DEADLINE = 4.0
"""Seconds of the program's deadline."""

Outcome = tuple[float, str, str]
"""Seconds until the end of a rank's steps, the kind of its error or "passed", and its text."""


def run(
    what: str, wait: str, mark: Path, *more: str, ranks: int = 2, run: bool = False
) -> tuple[Ended, dict[int, Outcome]]:
    ended = jobs.start("silent.py", what, wait, *more, ranks=ranks, mark=mark, limit=40, run=run)
    outcomes = {}
    for rank, ((seconds, kind, text),) in jobs.lines(ended).items():
        outcomes[rank] = (float(seconds), kind, text)
    return ended, outcomes


def at_the_deadline(outcome: Outcome) -> str:
    """Expect a `CommTimeout` in time, and return its text."""
    seconds, kind, text = outcome
    assert kind == "CommTimeout", outcome
    assert DEADLINE - 0.5 < seconds < DEADLINE + stretched(2.0), outcome
    return text


def test_a_device_that_stops_is_named(tmp_path: Path) -> None:
    ended, outcomes = run("device", "wait", tmp_path / "mark", ranks=1)
    assert ended.code != 0
    assert "for the device" in at_the_deadline(outcomes[0])


# The device's own rank raises ten seconds later: NCCL's abort waits for the device.
def test_a_device_that_stops_is_named_among_several_ranks(tmp_path: Path) -> None:
    ended, outcomes = run("device", "wait", tmp_path / "mark", "16")
    assert ended.code != 0
    seconds, kind, text = outcomes[1]
    assert kind == "CommTimeout"
    assert "for the device, which has not completed this rank's earlier work" in text
    assert seconds < DEADLINE + 10 + stretched(2.0)
    assert "rank 1 on " in at_the_deadline(outcomes[0])


def test_the_other_rank_of_a_device_that_stops_is_told(tmp_path: Path) -> None:
    ended, outcomes = run("device", "get", tmp_path / "mark")
    assert ended.code != 0
    assert "rank 1 on " in at_the_deadline(outcomes[0]), ended.out


def test_a_rank_that_hangs_inside_nccl_is_named(tmp_path: Path) -> None:
    ended, outcomes = run("hang", "wait", tmp_path / "mark")
    assert ended.code != 0
    text = at_the_deadline(outcomes[0])
    assert "rank 1 on " in text
    assert "last called push('w')" in text


def test_a_collective_that_hangs_on_one_rank(tmp_path: Path) -> None:
    ended, outcomes = run("hang-job", "pull", tmp_path / "mark")
    assert ended.code != 0
    assert set(outcomes) == {0, 1}, f"{ended.out}\n{ended.err}"
    for outcome in outcomes.values():
        at_the_deadline(outcome)


@pytest.mark.parametrize("what", ["die", "die-job"])
def test_a_rank_that_dies_inside_nccl_is_named(what: str, tmp_path: Path) -> None:
    ended, outcomes = run(what, "get", tmp_path / "mark", run=True)
    assert ended.code != 0
    assert "ncclkv run: rank 1 on " in ended.err
    seconds, kind, text = outcomes[0]
    assert seconds < stretched(2.0)
    assert kind == "RankDied"
    assert "rank 1 ended" in text


@pytest.mark.parametrize("what", ["slow:1", "slow-job:1"])
def test_a_slow_rank_is_waited_for(what: str, tmp_path: Path) -> None:
    ended, outcomes = run(what, "get", tmp_path / "mark")
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    assert [outcomes[rank][1] for rank in (0, 1)] == ["passed", "passed"]
    assert min(outcomes[rank][0] for rank in (0, 1)) > 0.9


@pytest.mark.parametrize(
    ("what", "words"),
    [("fail:2", "ncclSystemError"), ("async:6", "ncclRemoteError")],
)
@pytest.mark.parametrize("wait", ["wait", "get"])
def test_an_error_of_nccl_s_is_told_on_both_ranks(
    what: str, words: str, wait: str, tmp_path: Path
) -> None:
    ended, outcomes = run(what, wait, tmp_path / "mark")
    assert ended.code != 0
    assert [outcomes[rank][1] for rank in (0, 1)] == ["RankLost", "CommAborted"]
    for seconds, _, text in outcomes.values():
        assert seconds < stretched(2.0)
        assert words in text, ended.out


def test_a_rank_that_leaves_its_store_open_says_why(tmp_path: Path) -> None:
    _, outcomes = run("fail:2", "leave", tmp_path / "mark")
    seconds, kind, text = outcomes[0]
    assert kind == "RankLost"
    assert seconds < stretched(4.0)  # the rank exits 1.2 s after its error
    assert "farewell: its process ended without closing the store, after CommAborted: " in text
    assert "ncclSystemError" in text
