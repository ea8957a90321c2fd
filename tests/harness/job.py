"""Real jobs: start one by ``launch/local.sh``, watch it from outside, and clean up after it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness import leftovers
from tests.harness.slow import VARIABLE, stretched

ROOT = Path(__file__).resolve().parents[2]

LIMIT = 20.0
"""Seconds after which a job counts as hanging, and its test fails."""


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes
    ----------
    code : int
        mpirun's exit code.
    out, err : str
    seconds : float
        From the last time that a rank touched MARK, or else from the start, to the end.
    """

    code: int
    out: str
    err: str
    seconds: float

    @property
    def words(self) -> list[str]:
        """Return the lines that ncclkv itself printed, in order."""
        return [line for line in self.err.splitlines() if line.startswith("ncclkv: ")]


Job = Callable[..., Ended]


def start(
    program: Path | str,
    *arguments: str,
    ranks: int,
    mark: Path,
    limit: float = LIMIT,
    run: bool = False,
    **variables: str,
) -> Ended:
    """Start a program on several ranks, by mpirun or by ``ncclkv run``, and wait for its end."""
    command = ["launch/local.sh", "-n", str(ranks)]
    if run:
        command = [sys.executable, "-m", "ncclkv", "run", "-n", str(ranks), "--", sys.executable]
    command += [str(program), *arguments]
    # Unbuffered, a line is several writes, and the lines of two ranks may be mixed.
    dropped = ("PYTHONUNBUFFERED", VARIABLE)
    inherited = {name: os.environ[name] for name in os.environ if name not in dropped}
    limit = stretched(limit)
    there = leftovers.present()
    begin = time.time()
    process = subprocess.run(
        ["timeout", "-k", "2", str(limit), *command],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT), "MARK": str(mark), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    end = time.time()
    if not run:  # mpirun leaves files when ranks are killed; `ncclkv run` must not
        leftovers.sweep(there)
    assert end - begin < limit, f"the job hung:\n{process.stdout}\n{process.stderr}"
    if mark.exists():
        begin = mark.stat().st_mtime
    return Ended(process.returncode, process.stdout, process.stderr, end - begin)


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    """Start a program of ``programs/``, beside the tests, and wait for its end."""

    def start_here(program: str, *arguments: str, ranks: int = 4, **options: Any) -> Ended:
        path = request.path.parent / "programs" / program
        return start(path, *arguments, ranks=ranks, mark=tmp_path / "mark", **options)

    return start_here
