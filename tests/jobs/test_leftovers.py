"""``ncclkv run`` leaves neither files of MPI nor processes, however a job ends."""

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

PROGRAM = str(PROGRAMS / "leaves_files.py")


def begin(folder: Path, *arguments: str, ranks: int = 2) -> subprocess.Popen[str]:
    """Start ``ncclkv run``."""
    return subprocess.Popen(
        [sys.executable, "-m", "ncclkv", "run", "-n", str(ranks), *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MARK": str(folder / "mark"),
            "TMPDIR": str(folder),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for its end; return what it wrote."""
    try:
        return process.communicate(timeout=LIMIT)
    finally:
        process.kill()


def made(out: str) -> list[Path]:
    """The files that the ranks of the job have named."""
    files = sorted({Path(name) for name in re.findall(r"made (\S+)", out)})
    assert any("mpich_shm_" in each.name for each in files), f"no file of MPICH:\n{out}"
    return files


def processes_of(folder: Path) -> list[str]:
    """Processes with the MARK of this test in their environment."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={folder / 'mark'}".encode() in (each / "environ").read_bytes():
                found.append((each / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def is_mpich() -> bool:
    """Tell whether the mpirun beside this Python, or else on PATH, is MPICH's."""
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
    out, err = ended(begin(tmp_path, "--", sys.executable, PROGRAM, case))
    left = [path for path in made(out) if path.exists()]
    assert not left, f"{case} leaves {left}\n{err}"
    assert not list(tmp_path.glob("ncclkv-run-*")), "the list of files is left"


@needs_mpich
def test_the_files_of_a_runner_that_was_killed_are_removed_by_the_next(tmp_path: Path) -> None:
    process = begin(tmp_path, "--", sys.executable, PROGRAM, "waits")
    limit = time.monotonic() + LIMIT
    listed = ""
    while "/mpich_shm_" not in listed and time.monotonic() < limit:
        time.sleep(0.05)
        listed = "".join(each.read_text() for each in tmp_path.glob("ncclkv-run-*/names"))
    process.kill()
    ended(process)
    files = [Path(line.partition(" ")[2]) for line in listed.splitlines()]
    assert files, "the runner has listed no file"
    while processes_of(tmp_path) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not processes_of(tmp_path)
    assert any(path.exists() for path in files), "there is nothing to be removed"
    ended(begin(tmp_path, "--", "true", ranks=1))
    assert not [path for path in files if path.exists()]
    assert not list(tmp_path.glob("ncclkv-run-*"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_daemon_is_left(tmp_path: Path, ranks: int) -> None:
    start = time.monotonic()
    process = begin(tmp_path, "--", sys.executable, PROGRAM, "daemon", ranks=ranks)
    _, err = ended(process)
    assert process.returncode == 0, err
    assert time.monotonic() - start < LIMIT, "it waits for the daemons"
    assert not processes_of(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small /dev/shm")
def test_little_room_is_told_before_the_start(tmp_path: Path) -> None:
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
