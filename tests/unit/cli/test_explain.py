"""Reports of broken stores: the files of each rank, and files that are incomplete."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.cli import WRONG, explain, main
from ncclkv.comm.diagnosis import dump
from ncclkv.errors import OrderMismatch, SpecMismatch
from ncclkv.testing import run_ranks
from tests.harness.context import context_of
from tests.harness.locks import is_held


def mismatch() -> None:
    """Run a store in which rank 1 pushes another key than the others."""
    kv = ncclkv.create("threads", timeout=10)
    kv.init(["a", "b"], [np.zeros(2), np.zeros(2)])
    kv.push("b" if kv.rank == 1 else "a", np.ones(2))
    with pytest.raises(OrderMismatch):
        kv.pull(["a", "b"])
    with pytest.raises(OrderMismatch):
        kv.pull("a")
    kv.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name the folder of the reports in the environment."""
    monkeypatch.setenv("NCCLKV_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["explain", str(folder)]) == 0
    return capsys.readouterr().out


def test_each_rank_writes_one_file_of_a_store(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ranks(3, mismatch)
    assert len(list(folder.iterdir())) == 3, "no later raise, and no unfinished file"
    assert "what happened first: the ranks differ in call 2: ranks 0, 2 called push('a') at " in (
        said(folder, capsys)
    )
    run_ranks(2, mismatch)
    assert said(folder, capsys).count("what happened first: ") == 2, "stores are told apart"


def test_reports_are_received_by_one_thread_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is broken, but not its collectives in flight, which a watcher looks at."""
    locks: dict[Any, threading.RLock] = {}
    held: list[bool] = []
    of_store = dump._of_store

    def content(calls: Any, now: float) -> dict[str, Any]:
        held.append(is_held(locks[calls]))
        return of_store(calls, now)

    monkeypatch.setattr(dump, "_of_store", content)

    def body() -> None:
        kv = ncclkv.create("threads", timeout=10)
        locks[context_of(kv).comm.calls] = context_of(kv).comm.lock
        with pytest.raises(SpecMismatch):
            kv.init("b" if kv.rank == 1 else "a", np.zeros(2))
        kv.close()

    run_ranks(2, body)
    assert held == [True, True]


def test_without_the_variable_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCLKV_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    run_ranks(2, mismatch)
    assert not list(tmp_path.iterdir())


def test_no_report_of_a_store_that_was_never_created(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        rank = ncclkv.comm.host.threads.world().rank
        with pytest.raises(SpecMismatch):
            ncclkv.create("threads", root=rank)

    run_ranks(2, body)
    assert len(list(folder.iterdir())) == 2
    assert "SpecMismatch" in said(folder, capsys)


def test_a_write_error_prints_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setenv("NCCLKV_DUMP", str(path))
    run_ranks(2, mismatch)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    for line in lines:
        begin = rf"ncclkv: NCCLKV_DUMP={str(path)!r}: the file of rank \d was not written: \w+: "
        assert re.match(rf"{begin}.*; set a directory that this rank can write to$", line)


def test_torn_and_foreign_files_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_ranks(3, mismatch)
    _, second, third = sorted(folder.iterdir())
    second.write_text(second.read_text()[:200])
    content = json.loads(third.read_text())
    third.write_text(json.dumps({**content, "format": 99}))
    (folder / "z-list.json").write_text("[1]")
    (folder / "z-bytes.json").write_bytes(b"\xff")
    lines = said(folder, capsys).splitlines()
    assert lines[:4] == [
        f"not read: {second.name} (torn, or no JSON)",
        f"not read: {third.name} (not a file of this version: format 99, and 1 is expected)",
        "not read: z-bytes.json (torn, or no JSON)",
        "not read: z-list.json (not a file of this version: list indices must be integers or "
        "slices, not str)",
    ]
    # Rank 0's own file holds what it saw of the others' calls.
    assert "files of rank 0; none of ranks 1, 2" in lines[5]
    assert "the ranks differ in call 2: ranks 0, 2 called push('a') at " in lines[6]


def test_no_files_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path)]) == WRONG
    assert f"start the job with NCCLKV_DUMP={tmp_path} in" in capsys.readouterr().err
    (tmp_path / "torn.json").write_text("{")
    assert main(["explain", str(tmp_path)]) == WRONG
    assert "torn.json (torn, or no JSON)" in capsys.readouterr().err


def content(rank: int, **changes: Any) -> dict[str, Any]:
    """Return a file of one of three ranks, after two calls."""
    calls = [
        {"number": number, "call": f"call {number}", "alike": [number, 0], "seconds": number / 10}
        for number in (1, 2)
    ]
    return {
        "format": dump.FORMAT,
        "store": "abc",
        "rank": rank,
        "size": 3,
        "host": "node1",
        "pid": 100 + rank,
        "seconds": 5.0 + rank,
        "time": 1e9,
        "error": {"type": "CommTimeout", "text": "too late"},
        "calls": calls,
        "wait": None,
        "others": {},
        **changes,
    }


@pytest.mark.parametrize(
    ("of_others", "waits", "first"),
    [
        ({"state": "has ended"}, [2], "rank 2 has ended; no call of it is known"),
        ({"state": "is stopped"}, [2], "rank 2 is stopped; no call of it is known"),
        ({"left": "ValueError: no"}, [2], "rank 2 left; farewell: ValueError: no; no call of it"),
        ({"left": "RankLost: rank 1"}, [2], "ranks 0, 1 waited for rank 2; no call of it is"),
        ({}, [2], "ranks 0, 1 waited for rank 2; no call of it is known"),
        ({"left": "ValueError: no", "state": "has ended"}, [], "rank 2 left; farewell: ValueError"),
        ({}, [], "no cause is in these files"),
    ],
)
def test_the_first_failure_is_named(
    of_others: dict[str, str], waits: list[int], first: str
) -> None:
    wait = {"ranks": waits, "total": len(waits), "waited": 5.0, "what": "a sum"} if waits else None
    store = explain.merge([content(rank, others={"2": of_others}, wait=wait) for rank in (0, 1)])
    assert explain.explain(store)[1].startswith(f"what happened first: {first}")


def test_the_last_of_a_chain_of_waits_is_named() -> None:
    waits = [{"ranks": [1]}, {"ranks": [2]}]
    store = explain.merge([content(rank, wait=wait) for rank, wait in enumerate(waits)])
    assert explain.explain(store)[1].startswith("what happened first: rank 1 waited for rank 2;")


def test_the_first_difference_comes_before_all_else() -> None:
    other = content(1)["calls"]
    other[1] = {**other[1], "alike": [7, 7], "call": "another call"}
    stopped = {"2": {"state": "is stopped"}}
    store = explain.merge([content(0, others=stopped), content(1, calls=other)])
    lines = explain.explain(store)
    assert lines[1].endswith(
        "differ in call 2: rank 0 called call 2, but rank 1 called another call"
    )
    assert lines[2].startswith("then, or besides: rank 2 is stopped")


def test_a_present_file_is_not_listed_as_missing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the others' files fails, as where MPI is gone."""

    def fails(*arguments: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(dump, "_await_others", fails)
    run_ranks(2, mismatch)
    assert len(list(folder.iterdir())) == 2
    assert "was not written" not in capsys.readouterr().err
