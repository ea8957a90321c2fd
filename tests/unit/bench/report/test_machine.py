"""Machine of a run, as records and sentences name it."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from bench.report import machine


def job(places: list[tuple[str, set[int]]]) -> Any:
    """Return a job whose ranks have these hosts and cores."""
    control = SimpleNamespace(allgather=lambda mine, what: places if what == "hosts" else [mine])
    comm = SimpleNamespace(control=control, name="MPICH", size=len(places))
    return SimpleNamespace(comm=comm, memory=SimpleNamespace(device=lambda: "a device"))


def test_cores_are_those_of_all_ranks_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    here = socket.gethostname()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    found = machine.describe(job([(here, {0}), (here, {1}), ("elsewhere", {0, 1, 2, 3})]))
    assert found["machine"]["cores"] == 2
    assert found["machine"]["nodes"] == 2
    assert found["ranks"] == 3


@pytest.mark.parametrize(
    ("gpu", "nodes", "cores", "text"),
    [
        (False, 1, 2, "4 ranks on 2 cores of Some CPU"),
        (False, 1, 1, "4 ranks on 1 core of Some CPU"),
        (False, 2, 2, "4 ranks on 2 nodes, each with 2 cores of Some CPU"),
        (True, 1, 2, "4 ranks on GPUs (Some GPU)"),
    ],
)
def test_place(gpu: bool, nodes: int, cores: int, text: str) -> None:
    devices = ["device  0 [0000:0A:00.0] Some GPU"]
    about = {"cores": cores, "processor": "Some CPU", "nodes": nodes, "devices": devices}
    assert machine.place({"machine": about, "ranks": 4, "options": {"gpu": gpu}}) == text
