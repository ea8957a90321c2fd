"""`bench.slow_link`, started by rank 0 while the other ranks wait."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.job import Job

LAUNCHER = ("PMI", "HYDI", "HYDRA", "MPI", "OMPI", "PRTE", "I_MPI", "SLURM")
"""Begins of the variables of launchers, by which a job inside would take itself for this one."""

POLL_SECONDS = 20.0
"""Seconds between two looks at the jobs, in which the other ranks wait."""


def run(job: Job) -> None:
    """Measure on hosts of namespaces; print the tables; collective."""
    process = _start(job) if job.comm.rank == 0 else None
    text = None
    while text is None:
        if process is not None:
            try:
                text, _ = process.communicate(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                text = None
        text, code = job.comm.control.broadcast(
            (text, process and process.returncode), label="jobs on slow links"
        )
    job.print(text)
    if code:
        raise RuntimeError("a job of bench.slow_link failed; its output is above")


def _start(job: Job) -> subprocess.Popen[str]:
    """Start the command outside of this job's launcher."""
    options = ["--rounds", str(job.options.rounds), "--out", str(job.options.out)]
    environment = {name: x for name, x in os.environ.items() if not name.startswith(LAUNCHER)}
    return subprocess.Popen(
        [sys.executable, "-m", "bench.slow_link", *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
