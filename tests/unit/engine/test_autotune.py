"""Bucket sizes by measurement: equal on all ranks, within a second, without leftover memory."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.base import Communicator
from ncclkv.comm.host import threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.engine import autotune
from ncclkv.engine.placement import EveryRank
from ncclkv.table.cost import MIB, CostModel, Sizing, fit
from ncclkv.testing import run_ranks

LEAST = 64 * 1024


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, CostModel], list[tuple[int, int]]]:
    """Set the time of each rank's collectives by a model; record (rank, bytes) of each."""
    models: dict[int, CostModel] = {}
    calls: list[tuple[int, int]] = []

    def seconds(trial: Any, nbytes: int) -> float:
        calls.append((trial._comm.rank, nbytes))
        return models[trial._comm.rank].seconds(nbytes)

    monkeypatch.setattr(autotune._Trial, "seconds", seconds)
    return models, calls


def tuned(comm: Communicator | None = None) -> Sizing:
    comm = threads.world() if comm is None else comm
    found = autotune.sizing(comm, EveryRank(comm, 0), "auto")
    comm.close()
    return found


def test_ranks_whose_times_differ_choose_alike(clocks: Any) -> None:
    models, calls = clocks
    # Rank 2 is the slowest at all sizes; alone, the ranks would choose 1, 32 and 16 MiB.
    models.update({0: CostModel(1e-5, 1e9), 1: CostModel(1e-4, 1.2e10), 2: CostModel(1e-3, 6e8)})
    assert [model.bucket_bytes() // MIB for model in models.values()] == [1, 32, 16]
    first, *others = run_ranks(3, tuned)
    assert others == [first, first]
    assert first.bucket_bytes == 16 * MIB
    assert first.cost is not None
    assert first.cost.latency_s == pytest.approx(1e-3)
    assert first.cost.bytes_per_s == pytest.approx(6e8)
    assert {nbytes for _, nbytes in calls} == {LEAST * 4**number for number in range(6)}


def test_each_size_takes_the_time_of_the_slowest_there(clocks: Any) -> None:
    models, _ = clocks
    models.update({0: CostModel(1e-2, 1e12), 1: CostModel(1e-6, 1e9)})
    sizes = [LEAST * 4**number for number in range(6)]
    points = [(n, max(model.seconds(n) for model in models.values())) for n in sizes]
    wanted = fit(points)
    assert wanted is not None
    assert run_ranks(2, tuned) == [Sizing(wanted.bucket_bytes(), wanted)] * 2


def test_slow_ranks_measure_short_collectives_alone(clocks: Any) -> None:
    models, calls = clocks
    models.update({0: CostModel(1e-6, 1e12), 1: CostModel(0.05, 1e7)})
    assert run_ranks(2, tuned)[0].bucket_bytes == 16 * MIB
    assert sorted(set(calls)) == [(rank, n) for rank in (0, 1) for n in (LEAST, 4 * LEAST)]


def test_times_that_do_not_grow_leave_the_default(clocks: Any) -> None:
    models, _ = clocks
    models.update({0: CostModel(1e-3, float("inf")), 1: CostModel(1e-3, float("inf"))})
    assert run_ranks(2, tuned) == [Sizing(25 * MIB)] * 2


def test_one_rank_measures_nothing(clocks: Any) -> None:
    assert tuned(SoloCommunicator(5)) == Sizing(25 * MIB)
    assert clocks[1] == []


def test_a_size_that_is_given_is_not_measured(clocks: Any) -> None:
    comm = SoloCommunicator(5)
    assert autotune.sizing(comm, EveryRank(comm, 0), 4096) == Sizing(4096)
    assert clocks[1] == []


def test_ranks_that_ask_for_different_sizes_disagree() -> None:
    def body() -> None:
        comm = threads.world()
        nbytes = "auto" if comm.rank else 4096
        comm.close()
        with pytest.raises(ncclkv.errors.SpecMismatch, match="bucket_bytes=auto"):
            ncclkv.create("threads", bucket_bytes=nbytes)

    run_ranks(2, body)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_the_memory_is_given_back(ranks_per_node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_RANKS_PER_NODE", str(ranks_per_node))

    def body() -> list[bool]:
        comm, taken = threads.world(), []
        allocate = comm.allocate

        def noted(nbytes: int) -> Any:
            memory = allocate(nbytes)
            # A view of a view in NumPy refers to the array beneath both.
            whole = memory.base if isinstance(memory.base, np.ndarray) else memory
            taken.append(weakref.ref(whole))
            return memory

        monkeypatch.setattr(comm, "allocate", noted)
        assert autotune.sizing(comm, EveryRank(comm, 0), "auto").bucket_bytes >= MIB
        left = [reference() is not None for reference in taken]
        comm.close()
        return left

    assert run_ranks(2, body) == [[False], [False]]
