"""Reports of ranks whose store breaks, and the output of ``ncclkv explain``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.job import ROOT, Ended, Job

TIMEOUT = {"NCCLKV_TIMEOUT": "3"}
NODES = {"NCCLKV_RANKS_PER_NODE": "2"}


def explained(folder: Path) -> list[str]:
    """Return the lines that the command prints."""
    ended = subprocess.run(
        [sys.executable, "-m", "ncclkv", "explain", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return ended.stdout.splitlines()


def written(folder: Path, ended: Ended, ranks: list[int]) -> list[dict[str, Any]]:
    """Return the files of one store, written by these ranks, in their order."""
    paths = sorted(folder.iterdir())
    assert [path.name.partition("-")[2] for path in paths] == [
        f"rank{rank}.json" for rank in ranks
    ], ended.err
    contents = [json.loads(path.read_text()) for path in paths]
    assert len({content["store"] for content in contents}) == 1
    return contents


def test_calls_that_differ(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    ended = job("mismatched_calls.py", "swapped_pushes", ranks=4, NCCLKV_DUMP=str(folder))
    for content in written(folder, ended, [0, 1, 2, 3]):
        assert content["error"]["type"] == "OrderMismatch"
        assert [call["number"] for call in content["calls"]] == [1, 2, 3, 4, 5, 6]
        assert any(
            "mismatched_calls.py" in line for each in content["stacks"].values() for line in each
        )
        assert content["versions"]["numpy"]
    first, second, *_ = explained(folder)
    assert re.fullmatch(r"store \w+, 4 ranks: files of ranks 0, 1, 2, 3", first)
    called = r"called push\('{}'\) at \S*mismatched_calls\.py:\d+"
    assert re.fullmatch(
        rf"what happened first: the ranks differ in call 4: ranks 0, 2, 3 {called.format('a')}, "
        rf"but rank 1 {called.format('b')}",
        second,
    )


@pytest.mark.parametrize("variables", [{}, NODES], ids=["one node", "two nodes"])
def test_a_rank_that_is_stopped(job: Job, tmp_path: Path, variables: dict[str, str]) -> None:
    folder = tmp_path / "dump"
    ended = job(
        "lost_ranks.py",
        "before",
        "stop",
        "2",
        ranks=4,
        NCCLKV_DUMP=str(folder),
        **TIMEOUT,
        **variables,
    )
    for content in written(folder, ended, [0, 1, 3]):
        assert content["error"]["type"] == "CommTimeout"
        assert content["variables"]["NCCLKV_TIMEOUT"] == "3"
        assert content["wait"]["ranks"]
    first, second, *_ = explained(folder)
    assert first.endswith(": files of ranks 0, 1, 3; none of rank 2")
    assert re.fullmatch(
        r"what happened first: rank 2 on \S+ \(pid \d+\) is stopped; its last call was number 3, "
        r"pull\('w'\) at \S*lost_ranks\.py:\d+, at \d\.\d+ s",
        second,
    )


def test_a_rank_that_exits(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    ended = job("lost_ranks.py", "before", "exit", "2", ranks=4, NCCLKV_DUMP=str(folder))
    for content in written(folder, ended, [0, 1, 3]):
        assert content["error"]["type"] == "RankLost"
    lines = explained(folder)
    assert re.match(
        r"what happened first: rank 2 on \S+ \(pid \d+\) left; farewell: .*; its last call was "
        r"number 3, pull\('w'\) at ",
        lines[1],
    ), lines
    times = [float(line.split()[0]) for line in lines if "RankLost: " in line]
    assert len(times) == 3
    assert times == sorted(times)
