"""Parts of the run on a lent GPU, with small programs: time, logs, archive and summary."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests import on_gpu
from tests.conformance import CASES
from tests.harness.source import ROOT
from tests.nccl.first_cases import FIRST
from tests.on_gpu import Lease, Part


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    """Return a budget of two minutes."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "folder").mkdir()
    return Lease(tmp_path / "folder", tmp_path / "logs", time.monotonic() + 120)


def program(text: str, limit: float = 50.0, **options: object) -> Part:
    return Part("part", "first", limit, ("-c", text), **options)  # type: ignore[arg-type]


def test_after_each_part_archive_and_summary_are_complete(lease, monkeypatch):
    assert lease.run(program("print('what it found')"))
    assert not lease.run(program("raise SystemExit(4)"))
    folder = lease.folder
    assert sorted(path.name for path in folder.iterdir()) == ["logs.tar.gz", "summary.txt"]
    summary = (folder / "summary.txt").read_text().splitlines()
    assert summary[0].startswith("part           passed (")
    assert summary[1] == "    what it found"
    assert summary[2].startswith("part           FAILED with exit code 4")
    with tarfile.open(folder / "logs.tar.gz") as archive:
        assert "logs/part.txt" in archive.getnames()


def test_a_part_past_its_limit_is_stopped_and_its_log_is_kept(lease):
    begin = time.monotonic()
    text = "import time; print('so far', flush=True); time.sleep(60)"
    assert not lease.run(program(text, limit=1.5))
    assert time.monotonic() - begin < 20
    assert "STOPPED after 2 s" in lease.lines[0]
    assert (lease.logs / "part.txt").read_text() == "so far\n"


def test_without_time_left_no_part_starts(lease):
    lease.end = time.monotonic() + on_gpu.RESERVE + on_gpu.LEAST - 1
    assert not lease.run(program("raise SystemExit"))
    assert "not run: the budget is spent" in lease.lines[0]
    assert not (lease.logs / "part.txt").exists()


def test_a_part_is_limited_to_the_time_left(lease, monkeypatch):
    monkeypatch.setattr(on_gpu, "LEAST", 0)
    lease.end = time.monotonic() + on_gpu.RESERVE + 2
    assert not lease.run(program("import time; time.sleep(60)", limit=600))
    assert "STOPPED after 2 s" in lease.lines[0]


def test_a_missing_requirement_is_named(lease, monkeypatch):
    monkeypatch.setenv("NO_MPI", "1")
    assert not lease.run(program("", ranks=2))
    assert not lease.run(program("", before=("no-such-tool",)))
    monkeypatch.setattr(on_gpu, "_torch_finds_a_gpu", lambda: False)
    assert not lease.run(program("", torch=True))
    assert "not run: two ranks do not meet (setup.txt)" in lease.lines[0]
    assert "not run: there is no no-such-tool" in lease.lines[1]
    assert "not run: torch finds no GPU, or is not installed" in lease.lines[2]


def test_a_test_that_ends_the_process_is_named_and_the_rest_runs(lease, monkeypatch):
    monkeypatch.setenv("NCCLKV_TEST_SLOW", "1")
    sample = "tests/harness/samples/loses_two.py"
    assert not lease.run(Part("part", "first", 60, (*on_gpu.PYTEST, sample)))
    assert f"FAILED: lost {sample}::test_that_never_ends, {sample}::test_that" in lease.lines[0]
    assert lease.lines[1] == "    2 passed, 1 failed"
    assert lease.lines[2].startswith(f"    {sample}::test_that_fails_after_both")


def test_nccl_logs_its_methods_where_ranks_share_a_gpu(lease):
    variables = {part.name: part.variables for part in on_gpu.PARTS}
    assert variables["comm-2"]["NCCL_DEBUG"] == variables["faults"]["NCCL_DEBUG"] == "INFO"
    # One write: the lines of two ranks may be mixed.
    text = (
        "import os, sys; "
        "sys.stdout.write('{NCCLKV_SHARE_GPU} {WAY}\\n'.format(**os.environ)); "
        "sys.stdout.flush()"
    )
    assert lease.run(program(text, ranks=2, variables={"WAY": "{logs}/x-%p.txt"}))
    assert (lease.logs / "part.txt").read_text() == f"1 {lease.logs}/x-%p.txt\n" * 2


def test_the_middle_of_a_long_log_is_cut(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"begin" + bytes(2 * on_gpu.MOST_BYTES) + b"end")
    on_gpu.shorten(log)
    kept = log.read_bytes()
    assert len(kept) == on_gpu.MOST_BYTES
    assert kept.startswith(b"begin")
    assert kept.endswith(b"end")
    assert b"bytes left out" in kept


def test_parts_run_in_order_of_value_by_default():
    names = [part.name for part in on_gpu.PARTS]
    assert names[:5] == ["versions", "ladder", "ladder-2", "each-kernel", "first-cases"]
    assert len(set(names)) == len(names)
    assert on_gpu.chosen([]) == list(on_gpu.PARTS)


def test_named_parts_run_in_the_order_of_the_command_line():
    names = [part.name for part in on_gpu.chosen(["faults", "ladder", "first", "faults"])]
    assert names == ["faults", "ladder", "versions", "ladder-2", "each-kernel", "first-cases"]
    with pytest.raises(SystemExit, match="no such part: thirst; see --list"):
        on_gpu.chosen(["thirst"])


@pytest.mark.parametrize("code", [1, on_gpu.SOME_FAILED, 0])
def test_a_ladder_that_ends_early_leaves_out_the_parts_behind_it(lease, code):
    ladder = program(f"raise SystemExit({code})", ranks=2, before_others=True)
    lease.run(ladder)
    alone, several = program("print('alone')"), program("print('several')", ranks=2)
    assert lease.run(alone)
    assert lease.run(several) == (code != 1)
    assert (lease.lines[-1] == "part           not run: part failed (0 s)") == (code == 1)


@pytest.mark.parametrize("part", on_gpu.PARTS, ids=lambda part: part.name)
def test_every_file_of_a_part_exists(part):
    files = [word for word in part.arguments if word.startswith("tests/")]
    assert all((ROOT / file).is_file() for file in files)


def test_first_cases_exist():
    assert FIRST.issubset(case.name for case in CASES)
    assert 40 <= len(FIRST) <= 60


def test_the_script_lists_its_parts_and_refuses_an_unknown_one():
    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["launch/on_gpu.sh", *arguments],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "VENV": sys.prefix},
            capture_output=True,
            text=True,
            check=False,
        )

    listed = script("--list")
    assert listed.returncode == 0, listed.stderr
    assert "first  versions       at most 60 s, ranks: 1" in listed.stdout
    assert script("--help").returncode == 0
    bare = script()
    assert bare.returncode == 2
    assert "launch/on_gpu.sh FOLDER [PART ...]" in bare.stderr + bare.stdout
