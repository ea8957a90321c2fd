"""Layer 2, recording stand-in, not NCCL: random programs in seeded worlds.

The streams of each rank and its watcher are threads of the world, whose turns the seed draws.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.testing import Seeded, sleep
from ncclkv.testing.habits import draw_habits
from tests.nccl.standin import Worker, run_on_standin
from tests.world.case import case_of, run

pytestmark = pytest.mark.limit(30)


BROKEN = {seed for seed in range(90) if case_of(seed, standin=True).expectation is not None}


@pytest.mark.parametrize("seed", sorted({*range(90)} - BROKEN))
def test_a_valid_program_ends_with_the_numbers_of_the_model(seed: int) -> None:
    case = case_of(seed, standin=True)
    assert not run(case).complaint, str(case)


@pytest.mark.parametrize("seed", sorted(BROKEN))
def test_a_broken_program_raises_what_is_promised(seed: int) -> None:
    case = case_of(seed, standin=True)
    assert not run(case).complaint, str(case)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_seed_gives_one_trace(seed: int) -> None:
    case = case_of(seed, standin=True)
    assert run(case).world.sha256 == run(case).world.sha256


@pytest.mark.parametrize("seed", range(10))
def test_memory_is_kept_until_the_collective_has_read_it(seed: int) -> None:
    """Check collectives of arrays that the program drops at once, and whose memory it reuses."""

    def body(worker: Worker) -> None:
        comm, streams = worker.communicator(), worker.streams
        for number in range(4):
            total = streams.put(np.zeros(3))
            work = comm.allreduce(streams.put(np.full(3, 1.0 * worker.rank + number)), total)
            streams.put(np.full(3, 77.0))
            work.wait()
            assert streams.get(total).tolist() == [2.0 * number + 1] * 3
        comm.close()

    run_on_standin(2, body, world=Seeded(seed))


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("in_cupy", [True, False], ids=["CuPy", "synchronize"])
def test_calls_are_compared_while_a_rank_waits_for_its_device(in_cupy: bool, seed: int) -> None:
    """Check that a rank which waits for a comparison gets the others' messages for it."""

    def body(worker: Worker) -> float:
        first = worker.communicator()
        second = first.duplicate()
        array = worker.streams.put(np.full(2, worker.rank + 1.0))
        if worker.rank == 2:
            sleep(0.5)
        second.digest.value += 1
        second.allreduce(array, array).wait()
        if worker.rank == 2:
            second.synchronize()
        first.allreduce(array, array).wait()
        if not in_cupy:
            second.synchronize()
        total: float = worker.streams.get(array)[0]
        second.close()
        first.close()
        return total

    habits = replace(
        draw_habits(Random(seed)),
        stall_rate=0.01,
        longest_stall=400_000_000,
        variables={"NCCLKV_NODE_MEMORY": "messages"},
    )
    assert run_on_standin(3, body, timeout=60.0, world=Seeded(seed, habits=habits)) == [18.0] * 3
