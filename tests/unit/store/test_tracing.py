"""Traces that begin and end while a store runs, and the profilers' ranges."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from ncclkv.observe.json_lines import read
from ncclkv.observe.ranges import ranges
from tests.harness.context import context_of


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init("w", np.zeros(4, "f4"))
        yield store


def verbs(path: str | Path) -> list[str]:
    return [each["name"] for each in read(Path(path)) if each["event"] == "verb"]


def test_a_trace_begins_at_the_call_and_ends_with_its_block(
    kv: ncclkv.KVStore, tmp_path: Path
) -> None:
    kv.wait()
    with kv.trace(tmp_path / "new" / "folder") as trace:
        kv.push("w", np.ones(4, "f4"))
    kv.wait()
    assert verbs(trace.path) == ["push"]
    assert context_of(kv).engine.events.listeners == {}


def test_a_trace_ends_by_stop_or_none_or_with_the_store(tmp_path: Path) -> None:
    with ncclkv.create("local") as kv:
        first = kv.trace(str(tmp_path))
        kv.wait()
        first.stop()
        first.stop()
        second, third = kv.trace(tmp_path), kv.trace(tmp_path)
        kv.barrier()
        kv.stop_traces()
        last = kv.trace(tmp_path)
    paths = first.path, second.path, third.path, last.path
    assert [*map(verbs, paths)] == [["wait"], ["barrier"], ["barrier"], ["close"]]


def test_the_variable_traces_from_the_creation_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLKV_TRACE", str(tmp_path))
    with ncclkv.create("local") as kv:
        kv.init("w", 1.0)
    (path,) = tmp_path.iterdir()
    assert verbs(path) == ["init", "close"]


def test_a_folder_that_cannot_be_written_is_named(
    kv: ncclkv.KVStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="rank 0 of 1: trace: no file can be made in '.*/file/x'"):
        kv.trace(tmp_path / "file" / "x")
    with pytest.raises(
        UsageError, match="trace takes a directory, not a int; traces end by stop_traces"
    ):
        kv.trace(3)  # type: ignore[arg-type]
    monkeypatch.setenv("NCCLKV_TRACE", str(tmp_path / "file"))
    caplog.set_level(logging.ERROR, "ncclkv")
    with ncclkv.create("local") as other:
        other.init("w", 1.0)
    assert "nothing is traced" in caplog.text


def test_a_broken_store_writes_its_failure(tmp_path: Path) -> None:
    kv = ncclkv.create("local")
    kv.init("w", np.zeros(4))
    trace = kv.trace(tmp_path)
    context_of(kv).session.fail(ncclkv.errors.CommTimeout("rank 1 is missing"))
    records = [*read(Path(trace.path))]
    assert records[-1]["event"] == "failed"
    assert records[-1]["error"] == "CommTimeout: rank 1 is missing"
    kv.close()


def test_verbs_are_ranges_of_imported_profilers(
    kv: ncclkv.KVStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    @contextmanager
    def noted(name: str, **options: Any) -> Iterator[None]:
        log.append(f"begin {name} {options}")
        yield
        log.append(f"end {name}")

    profiler = SimpleNamespace(record_function=noted)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(profiler=profiler))
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=noted))
    assert len(ranges()) == 2
    with kv.trace(tmp_path):
        kv.wait()
    kv.wait()
    assert log == [
        "begin ncclkv.wait {}",
        "begin ncclkv.wait {'domain': 'ncclkv'}",
        "end ncclkv.wait",
        "end ncclkv.wait",
    ]
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delitem(sys.modules, "nvtx")
    assert ranges() == []
