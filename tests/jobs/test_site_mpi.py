"""The MPI library that ``MPI4PY_LIBMPI`` names, beside the one in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.conftest import LIMIT, ROOT


def run(libraries: str) -> subprocess.CompletedProcess[str]:
    """Show the command line of a job of two ranks."""
    return subprocess.run(
        [sys.executable, "-m", "ncclkv", "run", "-n", "2", "--dry-run", "--", sys.executable],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPI4PY_LIBMPI": libraries},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_the_runner_takes_the_mpirun_beside_the_library():
    environment = os.environ.get("OPENMPI_ENV")
    if not environment:
        pytest.skip("OPENMPI_ENV names no environment with Open MPI")
    (library,) = Path(environment).glob("lib/libmpi.so.40")
    done = run(str(library))
    assert f" {library.resolve().parents[1]}/bin/mpirun -n 2 " in done.stdout, done.stderr


def test_a_library_that_is_not_there():
    done = run("/no/libmpi.so")
    assert done.returncode == 2
    assert "cannot load MPI" in done.stderr
    assert "/no/libmpi.so" in done.stderr
