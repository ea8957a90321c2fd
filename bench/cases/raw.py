"""The communicator's collectives in tables of nccl-tests' format."""

from __future__ import annotations

from bench.job import Job
from bench.raw.collectives import COLLECTIVES
from bench.raw.measure import table


def run(job: Job) -> None:
    for collective in COLLECTIVES:
        table(job, collective)
