"""Stores over some of the ranks, and the ranks of each store."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
import ncclkv.store.backends as find_store
from ncclkv.errors import LaunchError, UsageError


def total_of(communicator: MPI.Intracomm) -> float:
    """Return the sum of rank + 1 over the ranks of MPI_COMM_WORLD in `communicator`."""
    return sum(communicator.allgather(MPI.COMM_WORLD.Get_rank() + 1))


def sums(kv: ncclkv.KVStore) -> list[float]:
    """Return the sum over a store of every rank's number in the job, plus one."""
    kv.init("sum", np.zeros(3))
    kv.push("sum", np.full(3, MPI.COMM_WORLD.Get_rank() + 1.0))
    out: list[float] = kv.pull("sum").tolist()
    return out


@pytest.mark.parametrize("name", ["dist_sync", "dist", "DIST_SYNC"])
def test_all_ranks(name: str, comm_world: MPI.Intracomm) -> None:
    with ncclkv.create(name) as kv:
        assert kv.type == name.lower()
        assert kv.rank == comm_world.Get_rank()
        assert kv.num_workers == comm_world.Get_size()
        assert sums(kv) == [total_of(comm_world)] * 3


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines that users see without a setting."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "ncclkv" and record.levelno >= logging.WARNING
    ]


def test_one_short_line_tells_what_dist_found(
    comm_world: MPI.Intracomm, caplog: pytest.LogCaptureFixture
) -> None:
    # The line is logged once in a process, and other tests have logged it.
    find_store._log_once.cache_clear()
    caplog.set_level(logging.INFO, "ncclkv")
    with ncclkv.create("dist") as kv, ncclkv.create("dist"):
        reason = "in host memory: NCCL needs a GPU on every rank. rank"
        assert reason in kv.explain_plan()
    told = comm_world.Get_rank() == 0 and comm_world.Get_size() > 1
    size = comm_world.Get_size()
    line = (
        f"ncclkv: dist over {size} ranks in host memory, not on GPUs; kv.explain_plan() shows why"
    )
    assert lines_of(caplog) == ([line] if told else [])
    assert len(line) <= 100
    full = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len([line for line in full if "NCCL needs a GPU on every rank." in line]) == 2 * told


@pytest.mark.parametrize("name", ["dist_sync", "local"])
def test_a_store_in_host_memory_is_silent(
    name: str, comm_world: MPI.Intracomm, caplog: pytest.LogCaptureFixture
) -> None:
    find_store._log_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a local store on each of several ranks
        with ncclkv.create(name) as kv:
            assert "in host memory" not in kv.explain_plan()
    assert lines_of(caplog) == []


@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_even_and_odd_ranks(update_on: str, comm_world: MPI.Intracomm) -> None:
    rank = comm_world.Get_rank()
    # The key reverses the order of ranks: a store has the communicator's order, not the job's.
    half = comm_world.Split(rank % 2, -rank)
    with ncclkv.create("dist_sync", comm=half, update_on=update_on) as kv:
        assert (kv.rank, kv.num_workers) == (half.Get_rank(), half.Get_size())
        assert sums(kv) == [total_of(half)] * 3
        kv.init("root", np.full(2, float(rank)))
        assert kv.pull("root").tolist() == [half.bcast(rank)] * 2
    half.Free()


def test_one_rank_outside(comm_world: MPI.Intracomm) -> None:
    rank = comm_world.Get_rank()
    some = comm_world.Split(MPI.UNDEFINED if rank == 0 and comm_world.Get_size() > 1 else 0, rank)
    if some != MPI.COMM_NULL:
        with ncclkv.create("dist_sync", comm=some) as kv:
            assert sums(kv) == [total_of(some)] * 3
        some.Free()


def test_stores_over_all_and_over_some_at_once(comm_world: MPI.Intracomm) -> None:
    half = comm_world.Split(comm_world.Get_rank() % 2, comm_world.Get_rank())
    with ncclkv.create("dist_sync") as everyone, ncclkv.create("dist_sync", comm=half) as some:
        for i in range(3):
            everyone.broadcast(str(i), np.full(2, i + 5.0), np.zeros(2))
            some.broadcast(str(i), np.full(2, i + 50.0), np.zeros(2))
            everyone.push(str(i), np.ones(2))
            some.push(str(i), np.ones(2))
            assert some.pull(str(i)).tolist() == [half.Get_size()] * 2
            assert everyone.pull(str(i)).tolist() == [comm_world.Get_size()] * 2
    half.Free()


def test_the_callers_traffic_is_apart(comm_world: MPI.Intracomm) -> None:
    with ncclkv.create("dist_sync", comm=comm_world) as kv:
        kv.init("w", np.zeros(1000))
        right = (comm_world.Get_rank() + 1) % comm_world.Get_size()
        request = comm_world.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
        kv.push("w", np.ones(1000))
        assert (kv.pull("w") == comm_world.Get_size()).all()
        comm_world.send(("mine", comm_world.Get_rank()), right, tag=0)
        word, sender = request.wait()
        assert word == "mine"
        assert (sender + 1) % comm_world.Get_size() == comm_world.Get_rank()


def test_a_communicator_may_be_freed_before_its_store(comm_world: MPI.Intracomm) -> None:
    copy = comm_world.Dup()
    kv = ncclkv.create("dist_sync", comm=copy)
    copy.Free()
    with kv:
        assert sums(kv) == [total_of(comm_world)] * 3


def test_no_communicator_of_this_rank(comm_world: MPI.Intracomm) -> None:
    with pytest.raises(UsageError, match="COMM_NULL") as caught:
        ncclkv.create("dist_sync", comm=MPI.COMM_NULL)
    assert "comm" in str(caught.value)


def test_local_stores_beside_others_are_warned_of_once(comm_world: MPI.Intracomm) -> None:
    several = comm_world.Get_size() > 1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with ncclkv.create("local") as kv:
            assert (kv.rank, kv.num_workers) == (0, 1)
            assert sums(kv) == [comm_world.Get_rank() + 1.0] * 3
    assert len(seen) == (1 if several and comm_world.Get_rank() == 0 else 0)
    for warning in seen:
        assert f"{comm_world.Get_size()} independent" in str(warning.message)
        assert warning.filename == __file__


def test_variables_of_torch_that_the_program_sets(
    comm_world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", str(comm_world.Get_rank()))
    monkeypatch.setenv("WORLD_SIZE", str(comm_world.Get_size()))
    with ncclkv.create("dist_sync") as kv:
        assert kv.num_workers == comm_world.Get_size()


def test_one_rank_of_mpi_is_not_several_of_torch(
    comm_world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = comm_world.Get_size()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(4 * size))
    if size == 1:
        with pytest.raises(LaunchError, match="WORLD_SIZE=4 says"):
            ncclkv.create("dist_sync")
    else:
        with ncclkv.create("dist_sync") as kv:
            assert kv.num_workers == size
    # A program that gives its ranks is not alone unnoticed.
    own = comm_world.Split(comm_world.Get_rank())
    with ncclkv.create("dist_sync", comm=own) as kv:
        assert kv.num_workers == 1
    own.Free()
