"""Points at every line of chosen files."""

from __future__ import annotations

import sys

import pytest

import ncclkv
from ncclkv.testing import Seeded, run_ranks, sleep
from ncclkv.testing.faults import Raise

FILE = "ncclkv/comm/diagnosis/hang.py"


def body() -> None:
    with ncclkv.create("dist") as kv:
        sleep(2.0 * kv.rank)
        kv.barrier()


def test_each_line_of_a_file_is_a_point() -> None:
    world = Seeded(1, keep_trace=True, lines=[FILE])
    run_ranks(2, body, world=world)
    at_lines = {line.rpartition(" ")[2] for line in world.trace if " line " in line}
    assert len(at_lines) > 20
    assert {place.rpartition(":")[0] for place in at_lines} == {FILE}
    first, points = world.sha256, world.points
    run_ranks(2, body, world=world)
    assert (world.sha256, world.points) == (first, points)
    assert sys.gettrace() is None


@pytest.mark.parametrize("seed", range(10))
def test_an_exception_between_two_lines(seed: int) -> None:
    fault = Raise(1, 200 + 20 * seed)
    outcome = Seeded(seed, lines=["comm/messages/progress.py"], faults=[fault]).run(2, body, 10.0)
    assert isinstance(outcome.errors[1], KeyboardInterrupt)
    assert "rank 1" in str(outcome.errors[0])
