"""Sums beside several MPI libraries: the jobs, and the tables of their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import peers
from bench.cases import new_arrays
from bench.peers import Peer

ONE = Peer("One MPI", Path(".venv"), {"ONE_YIELDS": "1"})
TWO = Peer("Two MPI", Path(".venv-two"))


def record(library: float, ours: float = 2e-6, **others: float) -> dict[str, Any]:
    """Return the record of a job with one size."""
    medians = {"ncclkv": ours, "MPI": library, "bucket": 1e-6, "copy": 5e-7, **others}
    steps = {"title": new_arrays.TITLE, "results": [
        {"name": new_arrays.SAME, "median": 1e-3}, {"name": new_arrays.NEW, "median": 3e-3},
    ]}  # fmt: skip
    return {
        "machine": {"cores": 2, "processor": "a processor"},
        "versions": {"ncclkv": "1.2.3"},
        "commit": "abc",
        "libraries": {"MPI": "an MPI", **dict.fromkeys(others, "a library")},
        "sizes": [
            {"bytes": 4096, "median": medians, "p5": medians, "busbw": {"ncclkv": 2.05}, "wrong": 0}
        ],
        "ratios": [
            {"work": work, "library": each, "value": value, "seconds": 0.01}
            for work, each, value in (
                ("a step of ResNet-50 (two arrays)", "MPI", 1.25),
                ("a step of ResNet-50 with SGD", "MPI", 9.0),
                ("a loop", None, 9.0),
            )
        ],
        "tables": [steps],
    }


def test_each_ratio_is_of_one_job() -> None:
    records = {"One MPI": record(4e-6, Gloo=2e-5), "Two MPI": record(1e-6, ours=3e-6)}
    text = "\n".join(peers.lines(2, records))
    (row,) = (line.split() for line in text.splitlines() if line.startswith("       4 KiB"))
    assert row == ["4", "KiB", "2.0", "2.0", "2.05", "0.50", "3.00", "0.10", "1.0", "0.5"]
    assert "median                                        0.50       3.00       0.10" in text
    assert "# One MPI: an MPI" in text
    assert text.index(new_arrays.SAME) < text.index(new_arrays.NEW)
    assert "3.000 ms    3.00" in text
    steps = text.split("# a step of ResNet-50 (two arrays) by lists: ")[1].splitlines()
    assert [line.split() for line in steps[1:3]] == [
        ["One", "MPI", "10.0", "ms", "1.25"],
        ["Two", "MPI", "10.0", "ms", "1.25"],
    ]
    assert "9.00" not in text


def test_spinning_libraries_have_a_second_job_with_more_ranks_than_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "cores", lambda: 2)
    assert [name for name, *_ in peers.jobs([ONE, TWO], 2)] == ["One MPI", "Two MPI"]
    found = peers.jobs([ONE, TWO], 4)
    assert [(name, dict(variables)) for name, _, variables in found] == [
        ("One MPI", {}),
        ("Two MPI", {}),
        ("One MPI, yields", {"ONE_YIELDS": "1"}),
    ]


def test_a_job_that_fails_is_shown_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    (root / "launch").mkdir(parents=True)
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").touch()
    local = root / "launch" / "local.sh"
    local.write_text("#!/bin/sh\necho no MPI here; exit 3\n")
    local.chmod(0o755)
    monkeypatch.setattr(peers, "ROOT", root)
    monkeypatch.setattr(peers, "PEERS", (ONE, TWO))
    assert peers.main(["--ranks", "2", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "# One MPI on 2 ranks failed (3):\nno MPI here" in said
    assert "# Two MPI is left out: there is no .venv-two" in said
