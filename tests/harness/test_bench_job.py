"""The bench as its users start it: a real job, with the libraries that are installed."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.harness.source import ROOT


def test_job_of_two_ranks(tmp_path):
    options = ("--quick", "--rounds", "1", "--max-bytes", "4096", "--only", "raw", "sizes", "flush")
    done = subprocess.run(
        ["launch/local.sh", "-n", "2", "-m", "bench", *options, "--out", str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, third, empty, *_ = done.stdout.splitlines()
    assert first.startswith("ncclkv ")
    assert " by 2 ranks on " in first
    assert {" took " in each for each in (second, third)} == {True}
    assert empty == ""
    assert "floor" not in done.stdout
    assert "# bus bandwidth of the medians in GB/s" in done.stdout
    assert "backend=mpi-host" in done.stdout
    assert "# library MPI: " in done.stdout
    assert "# library Gloo" in done.stdout  # its version, or the reason of its absence
    assert "# all numbers were right" in done.stdout
    (report,) = tmp_path.glob("*.txt")
    assert done.stdout.startswith(report.read_text())
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert [table["name"] for table in found["raw"]] == [
        "all_reduce", "broadcast", "reduce_scatter", "all_gather"
    ]  # fmt: skip
    assert [row["bytes"] for row in found["sizes"]] == [8, 256]
    # On two ranks 2 (n - 1) / n is 1.
    medians = {name: time for name, time in found["sizes"][1]["median"].items() if name != "copy"}
    speeds = {name: 256 / time / 1e9 for name, time in medians.items()}
    assert found["sizes"][1]["busbw"] == pytest.approx(speeds)
    assert found["wrong"] == 0
    assert {"versions", "machine", "environment", "libraries", "absent"} <= found.keys()
