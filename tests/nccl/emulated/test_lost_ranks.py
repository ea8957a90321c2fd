"""Layer 3b: every rank names in time a rank that raises, dies or stops inside a loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.job import Ended
from tests.harness.slow import stretched
from tests.nccl.emulated import jobs

pytestmark = pytest.mark.limit(60)

RANKS = 3
DEADLINE = 4.0
"""Seconds of the program's deadline."""

KINDS = {"stop": "CommTimeout", "kill": "RankDied", "exit": "RankDied"}
SAID = {
    "stop": ("rank 1 on ", "and is stopped"),
    "kill": ("rank 1 ended",),
    "exit": ("rank 1 ended",),
}


def lose(way: str, wait: str, mark: Path, run: bool) -> Ended:
    ended = jobs.start("lost_ranks.py", way, wait, ranks=RANKS, mark=mark, limit=25, run=run)
    assert ended.code != 0, ended.out
    assert ended.seconds < stretched(15), f"{ended.out}\n{ended.err}"
    return ended


def named(way: str, ended: Ended) -> None:
    """Check that each of the other ranks named the lost rank in time."""
    found = jobs.lines(ended)
    assert set(found) == {0, 2}, f"{ended.out}\n{ended.err}"
    for lines in found.values():
        ((seconds, kind, text),) = lines
        assert float(seconds) < (DEADLINE if way == "stop" else 0) + stretched(2.0), ended.out
        assert kind == KINDS[way], ended.out
        assert all(words in text for words in SAID[way]), ended.out


@pytest.mark.parametrize(
    ("way", "wait"),
    [("kill", "wait"), ("kill", "get"), ("kill", "pull"), ("exit", "get"), ("stop", "pull")],
)
def test_ncclkv_run_lets_the_others_tell(way: str, wait: str, tmp_path: Path) -> None:
    ended = lose(way, wait, tmp_path / "mark", run=True)
    named(way, ended)
    if way != "stop":
        assert "ncclkv run: rank 1 on " in ended.err


@pytest.mark.parametrize("wait", ["wait", "get"])
def test_a_stopped_rank_under_mpirun(wait: str, tmp_path: Path) -> None:
    named("stop", lose("stop", wait, tmp_path / "mark", run=False))


# mpirun kills the others before they can print; the promise is only that no rank hangs.
@pytest.mark.parametrize("way", ["kill", "exit"])
def test_a_dead_rank_under_mpirun(way: str, tmp_path: Path) -> None:
    lose(way, "get", tmp_path / "mark", run=False)


@pytest.mark.parametrize("run", [False, True])
def test_an_exception_ends_the_job(run: bool, tmp_path: Path) -> None:
    ended = lose("raise", "get", tmp_path / "mark", run)
    assert "rank 1 of 3 on " in ended.err
    assert "failed, ending the job: ValueError: on purpose" in ended.err
    if run:
        assert "ncclkv run: rank 1 on " in ended.err
