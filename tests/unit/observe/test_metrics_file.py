"""Files of metrics: when lines are written, and names of files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.observe.counter import Counter
from ncclkv.observe.json_lines import read
from ncclkv.observe.metrics_file import MetricsFile
from ncclkv.testing import run_ranks


def test_a_line_each_ten_seconds_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(concurrency, "perf_counter", lambda: now[0])
    counter = Counter(0, 1)
    file = MetricsFile(str(tmp_path / "new" / "m.jsonl"), "dist_sync", counter)
    for step in range(1, 26):
        now[0] = 100.0 + step
        counter.verb("push", 0.5)
        file.verb("push", 0.5)
    file.closed()
    rows = [*read(tmp_path / "new" / "m.jsonl")]
    assert [row["verbs"]["push"]["calls"] for row in rows] == [10, 20, 25]
    assert [row["seconds"] for row in rows] == [10.0, 20.0, 25.0]
    assert {row["store"] for row in rows} == {"dist_sync"}
    assert all(row["time"] > 1e9 for row in rows)


def test_each_rank_and_store_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLKV_METRICS", str(tmp_path / "m.jsonl"))

    def body() -> None:
        for _ in range(2):
            with ncclkv.create("threads") as kv:
                kv.init("w", np.zeros(4))
                kv.push("w", np.ones(4))

    run_ranks(2, body)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["m.2.jsonl", "m.jsonl", "m.rank1.2.jsonl", "m.rank1.jsonl"]
    for name in names:
        (row,) = read(tmp_path / name)
        assert row["rank"] == ("rank1" in name)
        assert row["verbs"]["push"]["calls"] == 1


def test_a_failure_is_the_last_line(tmp_path: Path) -> None:
    counter = Counter(0, 1)
    file = MetricsFile(str(tmp_path / "m.jsonl"), "dist_sync", counter)
    counter.verb("push", 0.5)
    file.failed("CommTimeout: late")
    assert len([*read(tmp_path / "m.jsonl")]) == 1


def test_a_file_that_cannot_be_made_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NCCLKV_METRICS", str(tmp_path / "file" / "m.jsonl"))
    caplog.set_level(logging.ERROR, "ncclkv")
    with ncclkv.create("local") as kv:
        kv.init("w", 1.0)
        assert kv.metrics()["verbs"]["init"]["calls"] == 1
    assert "no metrics are written" in caplog.text
