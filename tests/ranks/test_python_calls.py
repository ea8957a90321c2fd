"""Python calls of a step in which nothing changes: each costs a good part of a small copy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.kernels.host import compiled
from ncclkv.optimizer import SGD
from tests.harness.slow import stretched

WORLD = MPI.COMM_WORLD

pytestmark = [
    pytest.mark.skipif(WORLD.size == 1, reason="a rank alone makes no collective"),
    pytest.mark.skipif(not compiled.active, reason="Python makes the steps that C leaves out"),
]

KEYS = [f"layer{number}.weight" for number in range(200)]
ENOUGH_STEPS, MOST_STEPS = 20, 300

SMALL, SHARED = 16, 100
"""Elements of a key: the bucket is reduced in copies, or in shared weights."""

PUSH, PULL, WAIT, LAST_PUSH = "push", "pull", "wait", "push of the last rank"
MOST = {PUSH: 48, PULL: 29, WAIT: 29, LAST_PUSH: 58}
"""Calls at most.  The last rank to push makes its part of the sum there, the others at the end."""


@pytest.fixture
def settings(several_nodes: bool) -> None:
    if several_nodes:
        pytest.skip("between nodes a sum waits for messages, whose polls are calls")


@pytest.fixture(params=["assign", "sgd"])
def updater(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[SMALL, SHARED])
def store(
    request: pytest.FixtureRequest, settings: None, updater: str, tmp_path: Path
) -> Iterator[tuple[Any, list[np.ndarray]]]:
    """A store of 200 keys, and an array for each."""
    arrays = [np.ones(request.param, np.float32) for _ in KEYS]
    with ncclkv.create("dist_sync", timeout=stretched(20.0)) as kv:
        kv.init(KEYS, arrays)
        if updater == "sgd":
            kv.set_optimizer(SGD(learning_rate=0.1, momentum=0.9))
        with kv.trace(tmp_path):  # what has observed the store costs nothing afterwards
            kv.push(KEYS, arrays)
            kv.wait()
        yield kv, arrays


def calls_of(call: Callable[..., object], *arguments: object) -> int:
    """Return the number of Python functions that a call enters or resumes."""
    entered = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(profile)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("end", [PULL, WAIT])
def test_a_step_of_200_keys(store: tuple[Any, list[np.ndarray]], end: str) -> None:
    """Count on ranks that push before another, which make their part of the sum at the end.

    A poll is a call, and the number of polls depends on the time.  So the step with the fewest
    calls counts.
    """
    kv, arrays = store
    outs = [np.empty_like(array) for array in arrays]
    ends: dict[str, tuple[Any, ...]] = {PULL: (kv.pull, KEYS, outs), WAIT: (kv.wait, KEYS)}
    fewest: dict[str, int] = {}
    most: dict[str, int] = {}
    for step in range(MOST_STEPS):
        for what, count in counted_step(kv, arrays, ends[end], end, step).items():
            fewest[what] = min(count, fewest.get(what, count))
        if step >= ENOUGH_STEPS:
            everywhere = WORLD.allgather(fewest)
            most = {what: max(each[what] for each in everywhere) for what in fewest}
            if all(most[what] <= MOST[what] for what in most):
                return
    pytest.fail(f"calls of the rank with the most of them: {most}; at most {MOST}")


def counted_step(
    kv: Any, arrays: list[np.ndarray], call: tuple[Any, ...], end: str, step: int
) -> dict[str, int]:
    """Push and end a step; return the calls of this rank's part in it."""
    last = step % WORLD.size == WORLD.rank
    if last:
        WORLD.Barrier()
    counts = {LAST_PUSH if last else PUSH: calls_of(kv.push, KEYS, arrays)}
    if not last:
        WORLD.Barrier()
    WORLD.Barrier()
    counted = (step + 1) % WORLD.size == WORLD.rank
    if counted:
        time.sleep(0.01)  # until all others wait for this rank, which then waits for nobody
    count = calls_of(*call)
    return {**counts, end: count} if counted else counts


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(("count", "most"), [(300, 24), (1200, 27)])
def test_loops_over_keys_on_two_lines_in_turn(count: int, most: int) -> None:
    """A key that is pushed and pulled alone finds the text of its call again, from either line.

    The texts of more than a thousand keys are written again.
    """
    keys = [f"key{number}" for number in range(count)]
    array, out = np.ones(SMALL, np.float32), np.empty(SMALL, np.float32)
    with ncclkv.create("dist_sync", timeout=stretched(20.0)) as kv:
        kv.init(keys, [array] * len(keys))

        def first(key: str) -> None:
            kv.push(key, array)

        def second(key: str) -> None:
            kv.push(key, array)

        def pull(key: str) -> None:
            kv.pull(key, out)

        for _ in range(3):
            for push in (first, second):
                counts = [calls_of(call, key) for call in (push, pull) for key in keys]
        # A few of the calls launch a bucket, or wait for it.
        assert sorted(counts)[len(counts) * 9 // 10] <= most
