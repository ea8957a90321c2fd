"""``launch/pbs.sh``, the file that users copy, with the variables and the file of nodes of PBS."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.jobs.conftest import LIMIT, ROOT

RECIPE = ROOT / "launch" / "pbs.sh"
BEFORE = ("PBS_", "SLURM_", "PMI_", "HYDRA_", "OMPI_", "PRTE_")
"""Beginnings of variables that another launcher of this test may have set."""


@pytest.mark.limit(90)
def test_a_checkpoint_before_the_limit(tmp_path: Path) -> None:
    """Check the number of ranks, and the checkpoint while the job goes on."""
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(BEFORE)}
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": "7.server",
        "PBS_JOBNAME": "example",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PBS_O_WORKDIR": str(ROOT),
        "VENV": sys.prefix,
        "SAVED": str(tmp_path / "saved"),
        "SAVE_AFTER": f"{stretched(10):g}s",
    }
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [str(RECIPE)],
            cwd=tmp_path,  # PBS begins in the home directory
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        limit = time.monotonic() + stretched(LIMIT)
        while not any((tmp_path / "saved" / "example").glob("step-*")):
            assert process.poll() is None, f"the job ended:\n{output.read_text()}"
            assert time.monotonic() < limit, output.read_text()
            time.sleep(0.05)
        time.sleep(0.5)
        assert process.poll() is None, f"the signal ended the job:\n{output.read_text()}"
    finally:
        process.terminate()
        code = process.wait()
    text = output.read_text()
    assert "ncclkv run: 2 ranks, from the lines of PBS_NODEFILE=" in text
    assert len(re.findall("begins at step 0", text)) == 2, text
    assert code == 143, text
