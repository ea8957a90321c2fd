"""Pack and unpack kernels, relative to a plain copy in the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.data import addend
from bench.job import Job
from bench.models import MODELS
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, Marks, take_turns
from bench.workload import Workload

CALLS = 20
LEAST = 0.85
"""Bandwidth, in that of a copy, which the kernels reach at least."""


class Kernel(Candidate):
    """A kernel that reads and writes all keys."""

    calls = CALLS

    def __init__(self, work: Workload) -> None:
        job = work.job
        self.name = type(self).__name__.lower()
        self.work = work
        self.kernels = job.comm.kernels
        self.flat = job.memory.bucket(work.nbytes // 4)
        self.other = job.memory.bucket(work.nbytes // 4)
        self.slots = [view.reshape(-1) for view in work.views(self.flat)]
        self.table: Any = None
        self.step = 0

    def prepare(self, step: int) -> None:
        self.step = step
        self.work.fill(step)
        self.work.fill(step, self.work.views(self.flat))
        self.work.overwrite_outs()
        self.other.fill(np.nan)

    def off(self, arrays: list[Any]) -> int:
        """Return the count of elements in the keys' arrays that differ from this rank's data."""
        rank, pattern = self.work.job.comm.rank, self.work.job.pattern
        return sum(
            pattern.wrong(array, 1, addend(rank, self.step, key), start=key)
            for key, array in enumerate(arrays)
        )


class Copy(Kernel):
    """Copy of one array into another: the bandwidth of memory."""

    def run(self, mark: Marks) -> None:
        self.work.job.memory.xp.copyto(self.other, self.flat)

    def wrong(self) -> int:
        return self.off(self.work.views(self.other))


class Pack(Kernel):
    """Copy of all gradients into a bucket."""

    def prepare(self, step: int) -> None:
        super().prepare(step)
        self.flat.fill(np.nan)

    def run(self, mark: Marks) -> None:
        self.table = self.kernels.pack_all(self.work.gradients, self.slots, self.table)

    def wrong(self) -> int:
        return self.off(self.slots)


class Unpack(Kernel):
    """Copy of a bucket into all outs."""

    def run(self, mark: Marks) -> None:
        self.table = self.kernels.unpack_all(self.slots, self.work.outs, self.table)

    def wrong(self) -> int:
        return self.off(self.work.outs)


def run(job: Job) -> None:
    name = job.options.models[0]
    work = Workload(job, MODELS[name]())
    if not job.fits(f"kernels on the keys of {name}", 6 * work.nbytes):
        return
    candidates: list[Kernel] = [Copy(work), Pack(work), Unpack(work)]
    results = take_turns(job, "kernels", candidates)
    title = f"kernels on the keys of {name}, {size_text(work.nbytes)}; GB/s of one pass"
    table.table(job, title, results, work.nbytes, "copy")
    copied = results["copy"].median
    job.print(f"# copy: {2 * work.nbytes / copied / 1e9:.1f} GB/s read and written")
    for candidate in candidates[1:]:
        speed = copied / results[candidate.name].median
        text = f"{candidate.name} bandwidth / copy bandwidth"
        table.floor(job, text, speed, LEAST, least=True)
    job.print()
