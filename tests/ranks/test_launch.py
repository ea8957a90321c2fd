"""Communicators made from MPI: ranks, deadline, and the limits of MPI."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.errors import (
    CommAborted,
    CommTimeout,
    LaunchError,
    OrderMismatch,
    SpecMismatch,
    UsageError,
)
from tests.harness.slow import stretched


class Watched(MPI.Intracomm):
    """Communicator that keeps the copies made of it."""

    def Idup(self, *args: Any) -> tuple[MPI.Intracomm, MPI.Request]:
        own, request = super().Idup(*args)
        self.copies = [*getattr(self, "copies", []), own]
        return own, request


class Exhausted(MPI.Intracomm):
    """MPICH's error when all of its communicators are in use."""

    def Idup(self, *args: Any) -> tuple[MPI.Intracomm, MPI.Request]:
        raise MPI.Exception(MPI.ERR_OTHER)


@pytest.fixture
def several(comm_world: MPI.Intracomm) -> MPI.Intracomm:
    """Skip unless a store of all ranks has an MPI communicator."""
    if comm_world.Get_size() == 1:
        pytest.skip("a store of one rank has no MPI communicator")
    return comm_world


def test_the_world_has_all_ranks(comm_world: MPI.Intracomm) -> None:
    comm = ncclkv.comm.world(timeout=stretched(20.0))
    assert isinstance(comm, ncclkv.Communicator)
    assert (comm.rank, comm.size) == (comm_world.Get_rank(), comm_world.Get_size())
    assert comm.timeout == stretched(20.0)
    sums = np.zeros(3)
    comm.allreduce(np.full(3, comm.rank + 1.0), sums).wait()
    assert (sums == comm.size * (comm.size + 1) // 2).all()
    assert comm.control.allgather(comm.rank) == list(range(comm.size))
    comm.close()


@pytest.mark.parametrize(
    ("variable", "argument", "seconds"), [("1.5", None, "1.5"), ("50", 1.25, "1.25")]
)
def test_stores_wait_as_long_as_they_are_told(
    variable: str, argument: float | None, seconds: str, comm_world: MPI.Intracomm
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCLKV_TIMEOUT", variable)
        kv = ncclkv.create("dist_sync", timeout=argument)
    if kv.rank < kv.num_workers - 1:
        with pytest.raises(CommTimeout) as caught:
            kv.barrier()
        assert f"(timeout {seconds} s)" in str(caught.value)
    else:
        time.sleep(float(seconds))  # a wait inside MPI keeps a core busy
    comm_world.Barrier()
    # The last rank closes while the others, which have left, called a barrier.
    with suppress(OrderMismatch):
        kv.close()


def test_no_communicator_is_left_in_mpi(several: MPI.Intracomm) -> None:
    watched = Watched(several)
    with pytest.raises(UsageError, match="update_on='nonsense'"):
        ncclkv.create("dist_sync", comm=watched, update_on="nonsense")
    with pytest.raises(SpecMismatch, match="root=-1"):
        ncclkv.create("dist_sync", comm=watched, root=-1 if several.Get_rank() == 0 else 0)
    ncclkv.create("dist_sync", comm=watched).close()
    assert watched.copies == [MPI.COMM_NULL] * 3


def test_mpi_has_no_more_communicators(several: MPI.Intracomm) -> None:
    with pytest.raises(CommAborted, match="close stores") as caught:
        ncclkv.create("dist_sync", comm=Exhausted(several))
    for word in (f"rank {several.Get_rank()} of {several.Get_size()}", "MPI reports: "):
        assert word in str(caught.value)
    assert isinstance(caught.value.__cause__, MPI.Exception)


def test_an_intercommunicator_has_two_groups(several: MPI.Intracomm) -> None:
    lower = several.Get_rank() == 0
    half = several.Split(0 if lower else 1)
    inter = half.Create_intercomm(0, several, 1 if lower else 0)
    with pytest.raises(UsageError, match=r"intercommunicator.*comm\.Merge\(\)"):
        ncclkv.create("dist_sync", comm=inter)
    merged = inter.Merge()
    with ncclkv.create("dist_sync", comm=merged) as kv:
        assert kv.num_workers == several.Get_size()
    for each in (merged, inter, half):
        each.Free()


def test_a_group_is_no_communicator(comm_world: MPI.Intracomm) -> None:
    with pytest.raises(UsageError, match="not a communicator; give mpi4py's"):
        ncclkv.create("dist_sync", comm=comm_world.Get_group())


@pytest.mark.parametrize("names", [("dist", "dist_sync"), ("nccl", "dist_sync"), ("dist", "nccl")])
def test_ranks_that_ask_for_stores_of_different_names(
    names: tuple[str, str], several: MPI.Intracomm
) -> None:
    with pytest.raises(SpecMismatch) as caught:
        ncclkv.create(names[several.Get_rank() > 0])
    assert f"rank 0 has name={names[0]}; rank 1 has name={names[1]}" in str(caught.value)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("1", "NCCLKV_RANKS_PER_NODE differs between ranks: "),
        ("abc", "rank 1 of {size}: NCCLKV_RANKS_PER_NODE='abc' is not a whole number"),
    ],
)
def test_a_node_that_ranks_see_differently_is_refused_by_all(
    odd: str, said: str, several: MPI.Intracomm
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if several.Get_rank() == 1:
            patch.setenv("NCCLKV_RANKS_PER_NODE", odd)
        with pytest.raises(LaunchError) as caught:
            ncclkv.create("dist_sync", timeout=stretched(20.0))
    assert said.format(size=several.Get_size()) in str(caught.value)
    if odd == "1":
        assert ", 1 on rank 1" in str(caught.value)
