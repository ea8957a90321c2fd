"""Every method by which processes share memory: agreement, log lines, and lifetime."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.comm.host import window
from ncclkv.comm.shm.node import CONTROL_BYTES
from ncclkv.system.memory_left import MemoryLeft
from tests.harness.context import context_of

WORDS = {
    "files": "share memory: anonymous files",
    "halves": "copy through shared memory: a window with halves of 4 MiB",
    "messages": "exchange messages",
}


@pytest.fixture
def several(comm_world: MPI.Intracomm) -> MPI.Intracomm:
    """Skip unless more than one rank is on a node."""
    if comm_world.Get_size() == 1:
        pytest.skip("a rank alone shares memory with nobody")
    return comm_world


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return all lines of the log."""
    caplog.set_level(logging.INFO, "ncclkv")
    return caplog


def told(comm: MPI.Intracomm, lines: pytest.LogCaptureFixture) -> str:
    """Return the line that rank 0 logged."""
    found = comm.bcast([record.getMessage() for record in lines.records])
    assert len(found) == 1, found
    return str(found[0])


def test_the_way_that_this_job_was_told(
    several: MPI.Intracomm, lines: pytest.LogCaptureFixture
) -> None:
    way = os.environ.get("NCCLKV_NODE_MEMORY", "") or "files"
    ncclkv.comm.world().close()
    assert WORDS[way] in told(several, lines)


def names_of_windows() -> list[str]:
    """Return the window files that have a name, which would outlive killed processes."""
    named = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        lo, hi = (int(part, 16) for part in line.split()[0].split("-"))
        if any(lo <= address < hi for address in window._mapped) and "(deleted)" not in line:
            named.append(line)
    return named


@pytest.mark.parametrize("way", WORDS)
def test_values_outlive_their_store(
    several: MPI.Intracomm,
    lines: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", way)
    kv = ncclkv.create("dist_sync")
    assert WORDS[way] in told(several, lines)
    assert (len(window._mapped) > 0) == (way == "halves")
    kv.init("w", np.zeros(100_000))
    total = several.Get_size() * (several.Get_size() + 1) / 2
    kv.push("w", np.full(100_000, kv.rank + 1.0))
    kv.pull("w")
    value = kv.value("w")
    assert (context_of(kv).comm.node_shared(0) is not None) == (way == "files")
    assert not names_of_windows()
    kv.close()
    del kv
    several.Barrier()
    assert (value == total).all()
    del value
    assert not window._mapped


def test_what_mpi_cannot_map_again_is_no_window(
    several: MPI.Intracomm, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if several.Get_rank() == several.Get_size() - 1:
        monkeypatch.setattr(window, "_MAY_MOVE", 1 << 30)
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "halves")
    comm = ncclkv.comm.world()
    sums = np.zeros(50_000)
    comm.allreduce(np.full(50_000, comm.rank + 1.0), sums).wait()
    assert (sums == comm.size * (comm.size + 1) / 2).all()
    comm.close()
    line = told(several, lines)
    assert "exchange messages (NCCLKV_NODE_MEMORY=halves; halves: [Errno 22] MPI's window" in line
    assert line.endswith("cannot be mapped again: Invalid argument)")
    assert not window._mapped


def test_mpi_makes_no_window(
    several: MPI.Intracomm, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoWindow:
        @staticmethod
        def Allocate_shared(*args: object, **named: object) -> None:
            raise MPI.Exception(MPI.ERR_NO_MEM)

    monkeypatch.setattr(MPI, "Win", NoWindow)
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "halves")
    ncclkv.comm.world().close()
    assert "exchange messages (NCCLKV_NODE_MEMORY=halves; halves: MPI makes" in told(several, lines)


def test_windows_that_are_open_are_not_free_twice(
    several: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", "halves")
    monkeypatch.setattr(window, "memory_left", lambda: MemoryLeft(1 << 30, "a box"))
    assert window.left() == 1 << 30
    kv = ncclkv.create("dist_sync")
    assert window.left() == (1 << 30) - len(context_of(kv).comm._node.ranks) * CONTROL_BYTES
    kv.close()
    del kv
    assert window.left() == 1 << 30
    several.Barrier()
