"""``launch/slurm.sbatch``, the file that users copy, as a job of Slurm."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.slurm.cluster import Batch, Cluster

RECIPE = ROOT / "launch" / "slurm.sbatch"
RANKS = 8
"""Number of ranks that the file asks for, on two nodes."""


def submit(cluster: Cluster, saved: Path, *options: str) -> Batch:
    """Submit the file, and wait until all ranks have begun."""
    job = cluster.submit_file(RECIPE, *options, VENV=sys.prefix, SAVED=str(saved))
    job.until(lambda: job.output.count("begins at step") == RANKS)
    return job


def cancel(cluster: Cluster, job: Batch) -> None:
    """End a job that runs; a job that the signal has ended would have FAILED."""
    assert cluster.run("scancel", str(job.job_id)).code == 0
    job.end()
    assert cluster.state_of(job.job_id)["JobState"] == "CANCELLED", job.output


@pytest.mark.limit(180)
def test_slurm_sends_the_signal_before_the_limit_and_the_next_job_continues(
    cluster: Cluster,
) -> None:
    """Check the signal that Slurm sends by itself; it looks at the limits twice a minute."""
    saved = cluster.folder / "recipe"
    job = submit(cluster, saved, "--time=1", "--signal=B:USR1@10")
    assert job.output.startswith(f"ncclkv run: {RANKS} ranks, from SLURM_NTASKS={RANKS}\n")
    cluster.until(lambda: any(saved.glob("example/step-*")), lambda: job.output, seconds=75)
    cancel(cluster, job)
    job = submit(cluster, saved)
    (start,) = {int(step) for step in re.findall(r"begins at step (\d+)", job.output)}
    assert start > 0, job.output
    cancel(cluster, job)
