"""Traces of several ranks as one timeline, read as a viewer reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.cli import WRONG, main
from ncclkv.observe.timeline import find_offsets, read_files, timeline
from ncclkv.testing import run_ranks

RANKS = 3


def step(kv: ncclkv.KVStore) -> None:
    kv.push(["a", "b"], [np.full(5000, 1.0 + kv.rank), np.ones(10)])
    kv.pull(["a", "b"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the traces of three ranks, of three steps each."""

    def body() -> None:
        with ncclkv.create("threads") as kv:
            kv.init(["a", "b"], [np.zeros(5000), np.zeros(10)])
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5))
            with kv.trace(tmp_path / "traces"):
                for _ in range(3):
                    step(kv)

    run_ranks(RANKS, body)
    return tmp_path / "traces"


def merged(folder: Path) -> list[dict[str, Any]]:
    files = read_files(folder)
    events: list[dict[str, Any]] = timeline(files, find_offsets(files))["traceEvents"]
    return events


def nested(spans: Iterable[dict[str, Any]]) -> bool:
    """Return whether two spans of a thread are apart, or the one encloses the other."""
    ends: list[float] = []
    for span in sorted(spans, key=lambda each: (each["ts"], -each["dur"])):
        while ends and ends[-1] <= span["ts"]:
            ends.pop()
        if ends and span["ts"] + span["dur"] > ends[-1] + 1e-3:
            return False
        ends.append(span["ts"] + span["dur"])
    return True


def test_a_process_for_each_rank_and_threads_that_nest(folder: Path) -> None:
    events = merged(folder)
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert sorted(name.split(" (")[0] for name in names) == ["rank 0", "rank 1", "rank 2"]
    threads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for each in events:
        assert each["ph"] in "MXi"
        if each["ph"] == "X":
            assert each["ts"] >= 0
            assert each["dur"] >= 0
            threads.setdefault((each["pid"], each["tid"]), []).append(each)
    assert all(map(nested, threads.values()))
    named = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    assert named == threads.keys()


def test_verbs_collectives_and_updates_of_each_rank(folder: Path) -> None:
    spans = [each for each in merged(folder) if each["ph"] == "X"]
    for process in range(RANKS):
        own = [each for each in spans if each["pid"] == process]
        count = {name: sum(each["name"] == name for each in own) for name in ("push", "pull")}
        assert count == {"push": 3, "pull": 3}
        sums = [each for each in own if each["name"] == "allreduce"]
        assert [each["args"]["seq"] for each in sums] == [1, 2, 3]
        assert sums[0]["args"]["keys"] == ["a", "b"]
        assert sums[0]["args"]["bucket"] == 0
        assert sums[0]["args"]["nbytes"] >= 40_000
        assert {"packed", "updated", "unpacked"} <= {each["name"] for each in own}


def test_all_ranks_are_in_a_sum_at_once(folder: Path) -> None:
    """Compare the times of one sum: no rank completes it before all have launched it."""
    sums = [each for each in merged(folder) if each["name"] == "allreduce"]
    for seq in (1, 2, 3):
        spans = [each for each in sums if each["args"]["seq"] == seq]
        assert max(each["ts"] for each in spans) <= min(e["ts"] + e["dur"] for e in spans) + 1


def shifted(path: Path, seconds: float) -> None:
    """Write a rank's file anew, as if it came from a machine with another clock."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["at"] += seconds
    records[0]["clock"], records[0]["host"] = "another", "far"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_clocks_of_machines_are_found_by_the_collectives(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = read_files(folder)
    before = {
        each["args"]["seq"]: each
        for each in merged(folder)
        if each["pid"] == 2 and each["name"] == "allreduce"
    }
    shifted(files[-1].path, 1234.5)
    offset = find_offsets(read_files(folder))["another"]
    assert abs(offset.at(0.0) - 1234.5) <= offset.error < 1.0
    for each in merged(folder):
        if each["name"] == "allreduce" and each["pid"] == 2:
            moved = abs(each["ts"] - before[each["args"]["seq"]]["ts"])
            assert moved <= 1e6 * offset.error + 1
    assert main(["trace", str(folder)]) == 0
    assert "clock of far: +1234." in capsys.readouterr().out


def test_stores_of_one_rank_compare_no_clocks(tmp_path: Path) -> None:
    for _ in range(2):
        with ncclkv.create("local") as kv:
            kv.init("w", np.zeros(4))
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
            with kv.trace(tmp_path):
                kv.push("w", np.ones(4))
                kv.wait()
    shifted(read_files(tmp_path)[-1].path, 77.0)
    offset = find_offsets(read_files(tmp_path))["another"]
    assert offset.error == float("inf")
    assert offset.at(0.0) == pytest.approx(77.0, abs=1.0)


def test_the_command_writes_what_a_viewer_reads(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "job.json"
    assert main(["trace", str(folder), "-o", str(output)]) == 0
    assert f"events of ranks 0, 1, 2, from {RANKS} files;" in capsys.readouterr().out
    read = json.loads(output.read_text())
    assert read["traceEvents"] == json.loads(json.dumps(merged(folder)))
    assert main(["trace", str(folder), "-o", str(tmp_path / "no" / "x.json")]) == WRONG
    assert "cannot be written" in capsys.readouterr().err


def test_a_cut_file_still_counts_and_a_foreign_file_does_not(folder: Path) -> None:
    path = read_files(folder)[0].path
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    (folder / "other.jsonl").write_text('{"event": "else"}\n{}\n')
    assert len(read_files(folder)) == RANKS
    assert merged(folder)


def test_an_empty_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(tmp_path)]) == WRONG
    assert f"{tmp_path} has no trace of a store" in capsys.readouterr().err
