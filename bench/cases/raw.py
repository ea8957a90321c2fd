"""The communicator's collectives in nccl-tests' tables."""

from __future__ import annotations

from bench.job import Job
from bench.raw import COLLECTIVES
from bench.raw.measure import table


def run(job: Job) -> None:
    for collective in COLLECTIVES:
        table(job, collective)
