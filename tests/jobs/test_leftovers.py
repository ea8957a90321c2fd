"""``ncclkv run`` leaves no files of MPI and no processes, however a job ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.conftest import LIMIT, PROGRAMS, ROOT
from tests.jobs.started_job import StartedJob, left

PROGRAM = str(PROGRAMS / "leftovers.py")


def made(out: str) -> list[Path]:
    """Return the files that the ranks of the job printed."""
    files = sorted({Path(name) for name in re.findall(r"made (\S+)", out)})
    assert any("mpich_shm_" in each.name for each in files), f"no file of MPICH:\n{out}"
    return files


def is_mpich() -> bool:
    """Return whether the mpirun beside this Python, or else on PATH, is MPICH's."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    tool = shutil.which("mpirun", path=places)
    line = [tool or "false", "--version"]
    return "HYDRA" in subprocess.run(line, capture_output=True, text=True, check=False).stdout


needs_mpich = pytest.mark.skipif(
    not is_mpich(), reason="these are files of MPICH, and mpirun is of another MPI"
)


@needs_mpich
@pytest.mark.parametrize("case", ["well", "kill", "kill-all"])
def test_no_file_is_left(tmp_path: Path, case: str) -> None:
    ended = StartedJob(tmp_path, "--", sys.executable, PROGRAM, case, ranks=2).end()
    files = [path for path in made(ended.out) if path.exists()]
    assert not files, f"{case} leaves {files}\n{ended.err}"


@needs_mpich
def test_the_files_of_a_runner_that_was_killed_are_removed_by_the_next(tmp_path: Path) -> None:
    job = StartedJob(tmp_path, "--", sys.executable, PROGRAM, "waits", ranks=2)
    limit = time.monotonic() + LIMIT
    listed = ""
    while "/mpich_shm_" not in listed and time.monotonic() < limit:
        time.sleep(0.05)
        listed = "".join(each.read_text() for each in job.temporary.glob("ncclkv-run-*"))
    job.process.kill()
    job.output()
    files = [Path(line.partition(" ")[2]) for line in listed.splitlines() if line]
    assert files, "the runner has listed no file"
    while left(tmp_path) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not left(tmp_path)
    assert any(path.exists() for path in files), "there is nothing to be removed"
    StartedJob(tmp_path, "--", "true", ranks=1).end()
    assert not [path for path in files if path.exists()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_daemon_is_left(tmp_path: Path, ranks: int) -> None:
    start = time.monotonic()
    ended = StartedJob(tmp_path, "--", sys.executable, PROGRAM, "daemon", ranks=ranks).end()
    assert ended.code == 0, ended.err
    assert time.monotonic() - start < LIMIT, "it waits for the daemons"
    assert not left(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm")
def test_little_free_space_is_reported_before_the_start(tmp_path: Path) -> None:
    mount = "mount -t tmpfs -o size=9m tmpfs /dev/shm"
    line = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    run = [sys.executable, "-m", "ncclkv", "run", "-n", "2", "--", "true"]
    done = subprocess.run(
        [*line, *run], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("ncclkv run: /dev/shm has 9 MiB free of 9 MiB; MPI takes up to 8 MiB")
    assert first.endswith("or make it larger (docker run --shm-size=1g)")
