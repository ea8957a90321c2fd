"""`Seeded`: the same seed gives the same run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.errors import UsageError
from ncclkv.testing import Seeded, run_ranks, sleep, start_thread
from tests.harness.source import ROOT

PROGRAM = """
import numpy as np, ncclkv
from ncclkv import concurrency
from ncclkv.errors import UsageError
from ncclkv.testing import Seeded, run_ranks, sleep, start_thread

def body():
    with ncclkv.create("dist") as a, ncclkv.create("dist") as b:
        a.init("w", np.zeros(300))
        a.push("w", np.ones(300))
        b.barrier()
        return a.pull("w").sum()

for seed in range(12):
    world = Seeded(seed)
    assert run_ranks(3, body, world=world) == [900.0] * 3
    print(world.sha256)
"""


def digests(**variables: str) -> list[str]:
    """Return the digests that a new process prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_another_process_repeats_a_run() -> None:
    first = digests(PYTHONHASHSEED="1")
    assert len(set(first)) == 12
    assert digests(PYTHONHASHSEED="2") == first


def test_worlds_before_it_do_not_matter() -> None:
    def body() -> None:
        with ncclkv.create("dist") as kv:
            kv.barrier()

    alone = Seeded(5)
    run_ranks(2, body, world=alone)
    for seed in range(5):
        run_ranks(2, body, world=Seeded(seed))
    again = Seeded(5)
    run_ranks(2, body, world=again)
    assert again.sha256 == alone.sha256


def test_a_trace_has_a_line_for_each_point() -> None:
    def body() -> None:
        with ncclkv.create("dist") as kv:
            kv.barrier()

    world = Seeded(5, keep_trace=True)
    run_ranks(2, body, world=world)
    kept = world.sha256
    assert len(world.trace) >= world.points > 100
    for line in world.trace:
        assert re.fullmatch(r"\d+ [01] [a-zA-Z: ]+ at \S+\.py:\d+", line), line
    places = {line.rpartition(" ")[2].rpartition(":")[0] for line in world.trace}
    assert "ncclkv/comm/messages/progress.py" in places
    assert not any(place.startswith("ncclkv/testing/mail") for place in places)
    plain = Seeded(5)
    run_ranks(2, body, world=plain)
    assert (plain.sha256, plain.trace) == (kept, [])


def test_the_error_of_a_rank_names_the_seed() -> None:
    def body() -> None:
        kv = ncclkv.create("dist")
        kv.init("w", np.zeros(2 + kv.rank))

    with pytest.raises(ncclkv.errors.SpecMismatch) as caught:
        run_ranks(2, body, world=Seeded(9))
    notes = " ".join(getattr(caught.value, "__notes__", [str(caught.value)]))
    assert re.search(r"in the world of seed 9, after \d+\.\d{6} s", notes)


def handed_on() -> list[int]:
    """Hand numbers from thread to thread, by nothing but locks, conditions and clocks."""
    ready, queue, taken = concurrency.Condition(), list[int](), list[int]()

    def take() -> None:
        for _ in range(5):
            with ready:
                ready.wait_for(lambda: bool(queue), 1.0)
                taken.append(queue.pop(0) if queue else -1)

    thread = start_thread(take)
    for number in range(5):
        sleep(0.4 * number)
        with ready:
            queue.append(number)
            ready.notify()
    thread.join()
    return taken


@pytest.mark.parametrize(
    ("seed", "digest"),
    [
        (1, "faed9769440d2a1194c497af37defd0debc063c0035d23e8e5aece1ead7dc847"),
        (2, "22fcd167656e135b3cd94f68e7b8df91de7d63a3212053f9dddc125dc3a88430"),
        (3, "554ff7df4195b7e0d809f864a0d5b2a13e39dfa84c08455d37beb0b8cf9282c2"),
    ],
)
def test_a_trace_is_the_same_on_every_python(seed: int, digest: str) -> None:
    world = Seeded(seed)
    run_ranks(2, handed_on, world=world)
    assert world.sha256 == digest


def test_what_is_no_world_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        run_ranks(2, handed_on, world=7)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "run_ranks: world is 7; give a seeded world: world=ncclkv.testing.Seeded(7)"
    )
    with pytest.raises(UsageError, match="Seeded: seed is '7'; give an int"):
        Seeded("7")  # type: ignore[arg-type]


def test_a_world_in_a_world_is_refused() -> None:
    def body() -> None:
        run_ranks(2, handed_on, world=Seeded(2))

    with pytest.raises(UsageError, match="a seeded world runs in this process"):
        run_ranks(1, body, world=Seeded(1))
    run_ranks(1, handed_on, world=Seeded(1))
