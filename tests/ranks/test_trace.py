"""A trace of all ranks: files, pings at both ends, and the same sums on one clock."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.observe.json_lines import read
from ncclkv.observe.timeline import find_offsets, read_files, timeline

pytestmark = pytest.mark.limit(60)


@pytest.fixture
def folder(comm_world: MPI.Intracomm, tmp_path: Path) -> Path:
    """Return rank 0's folder, on all ranks."""
    return Path(comm_world.bcast(str(tmp_path)))


@pytest.mark.parametrize("update_on", ["every_rank", "root", "sharded"])
def test_each_rank_writes_a_file_and_all_files_make_one_timeline(
    comm_world: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch, update_on: Any
) -> None:
    monkeypatch.setenv("NCCLKV_TRACE", str(folder))
    with ncclkv.create("dist_sync", update_on=update_on) as kv:
        kv.init("w", np.zeros(3000, "f4"))
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
        for _ in range(3):
            kv.push("w", np.ones(3000, "f4"))
            kv.pull("w")
    comm_world.barrier()
    files = read_files(folder)
    comm_world.barrier()
    assert [
        file.header["rank"] for file in sorted(files, key=lambda file: file.header["rank"])
    ] == [*range(comm_world.size)]
    assert {file.header["clock"] for file in files} == {files[0].header["clock"]}
    pings = [record for record in files[0].records if record["event"] == "ping"]
    assert len(pings) == (16 if comm_world.size > 1 else 0)
    kinds = {"every_rank": "allreduce", "root": "reduce", "sharded": "reduce_scatter"}
    spans = [
        each
        for each in timeline(files, find_offsets(files))["traceEvents"]
        if each["name"] == kinds[update_on]
    ]
    assert len(spans) == 3 * comm_world.size


def test_clocks_of_other_machines(
    comm_world: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let each rank's clock be another, and find their differences from pings and sums."""
    from ncclkv import concurrency
    from ncclkv.observe import tracer

    clock, ahead = concurrency.perf_counter, 100.0 * comm_world.rank
    monkeypatch.setattr(concurrency, "perf_counter", lambda: clock() + ahead)
    monkeypatch.setattr(tracer, "clock_name", lambda: f"clock {comm_world.rank}")
    monkeypatch.setenv("NCCLKV_TRACE", str(folder))
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(3000, "f4"))
        kv.push("w", np.ones(3000, "f4"))
        kv.wait()
    comm_world.barrier()
    files = read_files(folder)
    comm_world.barrier()
    first = files[0].header["rank"]
    for name, offset in find_offsets(files).items():
        expected = 100.0 * (int(name.split()[1]) - first)
        assert abs(offset.at(0.0) - expected) <= offset.error + 1e-9 < 0.5, (name, offset)


def test_ranks_may_trace_alone(
    comm_world: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm_world.rank == 0:
        monkeypatch.setenv("NCCLKV_TRACE", str(folder))
    with ncclkv.create("dist_sync") as kv:
        kv.init("w", np.zeros(3, "f4"))
    comm_world.barrier()
    if comm_world.rank == 0:
        (path,) = folder.glob("*.jsonl")
        events = [record["event"] for record in read(path)]
        assert "ping" not in events
        assert os.path.getsize(path)


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a rank alone waits for nobody")
def test_the_end_of_a_trace_waits_for_no_rank_that_has_left(
    comm_world: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_TRACE", str(folder))
    leaves = comm_world.rank == comm_world.size - 1
    kv = ncclkv.create("dist_sync", timeout=20)
    kv.init("w", np.zeros(3, "f4"))
    if leaves:
        with pytest.raises(ZeroDivisionError), kv:
            raise ZeroDivisionError
    comm_world.barrier()
    kv.close()
    comm_world.barrier()
    for file in read_files(folder):
        pings = [record["index"] for record in file.records if record["event"] == "ping"]
        assert pings == [*range(8)]
