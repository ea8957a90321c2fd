"""Rows of the start of a job: ``/dev/shm`` and the ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ncclkv.cli import launch_rows
from ncclkv.cli.mpirun_search import MpiLibrary
from ncclkv.doctor.rows import BLOCKS, OK, WARNS, RankRows, Row


@pytest.mark.parametrize(
    ("usage", "level"), [((64 << 20, 0, 32 << 20), OK), ((64 << 20, 0, 31 << 20), WARNS)]
)
def test_space_for_the_files_of_mpi(
    monkeypatch: pytest.MonkeyPatch, usage: tuple[int, int, int], level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert launch_rows.shared_memory(4).level == level
    assert launch_rows.shared_memory(1).level == OK


def test_no_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise FileNotFoundError(2, "No such file", str(path))

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert launch_rows.shared_memory(4).level == BLOCKS


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("mpirun (Open MPI) 5.0.11", ["mpirun (Open MPI) 5.0.11"]),
        ("HYDRA build details: Version: 4.2", []),
        ("", []),
    ],
)
def test_an_mpirun_of_another_mpi_on_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, found: list[str]
) -> None:
    """Check the mpirun that a user would type; a site's own script may show no version."""
    script = tmp_path / "mpirun"
    script.write_text(f"#!/bin/sh\nprintf '%s' '{version}'\n")
    script.chmod(0o755)
    library = MpiLibrary("MPICH Version: 5.0.2", None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    rows = [*launch_rows.mpirun_on_path(library)]
    assert [row.found for row in rows] == found
    assert all((row.used, row.level) == (str(script), WARNS) for row in rows)
    script.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [*launch_rows.mpirun_on_path(library)] == [], "mpirun is not found at all"


def test_ranks_of_each_host_and_missing_ones() -> None:
    reports = [RankRows(rank, f"node{rank % 2}", []) for rank in (0, 1, 2)]
    assert launch_rows.ranks(3, reports).used == "ranks 0, 2 on node0; rank 1 on node1"
    row: Row = launch_rows.ranks(4, reports, "the job failed: x")
    assert (row.found, row.level) == ("3 of 4", BLOCKS)
    assert row.why == "no report of rank 3; the job failed: x"
