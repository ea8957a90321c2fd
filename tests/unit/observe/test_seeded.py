"""Traces and metrics in a seeded world: its clock, and the same events from the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.observe.timeline import read_files
from ncclkv.testing import Seeded, run_ranks

OF_THE_PROCESS = {"pid", "wall", "clock", "host", "group"}


def observed(folder: Path, seed: int) -> tuple[list[Any], list[Any]]:
    """Return the records of all ranks of a world, and their metrics."""

    def body() -> Any:
        with ncclkv.create("threads") as kv:
            kv.metrics()
            kv.init("w", np.zeros(2000, "f4"))
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
            with kv.trace(folder):
                for _ in range(3):
                    kv.push("w", np.full(2000, kv.rank + 1.0, "f4"))
                    kv.pull("w")
                kv.barrier()
            return kv.metrics()

    metrics = run_ranks(3, body, world=Seeded(seed))
    files = read_files(folder)
    records = [[file.header, *file.records] for file in files]
    for file in records:
        file[0] = {name: value for name, value in file[0].items() if name not in OF_THE_PROCESS}
    return records, metrics


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_the_same_trace_and_metrics(tmp_path: Path, seed: int) -> None:
    first, second = (observed(tmp_path / str(turn), seed) for turn in range(2))
    assert first == second
    records, metrics = first
    for file, counts in zip(records, metrics, strict=True):
        events = [each["event"] for each in file]
        assert events.count("launched") == events.count("completed") == 3
        assert counts["verbs"]["push"]["calls"] == 3
