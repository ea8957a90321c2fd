"""A process killed during a save leaves the old checkpoint or the new one, whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("safetensors", reason="safetensors is absent: the extra `checkpoint`")

from tests.harness.extent import examples, some_or_all
from tests.harness.source import ROOT

PROGRAM = "tests.unit.programs.killed_saves"


def said(*arguments: str, seconds: int) -> list[int]:
    """Run the program, and return the numbers that it prints, one a line."""
    run = subprocess.run(
        ["timeout", str(seconds), sys.executable, "-m", PROGRAM, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return [int(line.split()[0]) for line in run.stdout.splitlines()]


@pytest.mark.limit(200)
def test_at_every_call_to_the_system() -> None:
    # The disk is the same after a call and before the next.
    moments = some_or_all(["after"], ["before", "after"])
    kills = said("calls", *moments, seconds=180)
    assert len(kills) == 3 * len(moments)
    assert all(count >= 15 for count in kills), kills


@pytest.mark.limit(200)
def test_while_two_ranks_write() -> None:
    (kills,) = said("parallel", seconds=180)
    assert kills >= 20


@pytest.mark.limit(200)
def test_at_any_moment() -> None:
    kills = examples(200)
    (under_way,) = said("moments", str(kills), seconds=180)
    assert under_way >= kills // 10, "most of the kills came while nothing was written"
