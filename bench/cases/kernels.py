"""Pack, unpack and update kernels, relative to a plain copy in the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.data import LEARNING_RATE, MOMENTUM, addend
from bench.job import Job
from bench.models import MODELS
from bench.options import MIB
from bench.report import table
from bench.rounds import Candidate, Marks, Result, take_turns
from bench.workload import Workload
from ncclkv.kernels.base import Segments

CALLS = 20


class Kernel(Candidate):
    """A kernel on all keys that reads and writes `passes` times the bytes of the keys."""

    calls = CALLS
    passes = 2
    least = 0.85
    """Bandwidth, in that of a copy, which the kernel reaches at least."""

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
        """Return the number of elements in the keys' arrays that differ from this rank's data."""
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


class Update(Kernel):
    """SGD with momentum: reads weights, gradients and momenta, writes weights and momenta."""

    passes = 5
    program = "sgd"
    first: tuple[float, ...] = (0.0,)
    """First elements of each state."""
    scalars = (LEARNING_RATE, MOMENTUM, 0.0, 1.0, -1.0)
    divisor = 1.0

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self.states = [work.job.memory.bucket(work.nbytes // 4) for _ in self.first]
        row = np.array([self.scalars])
        self.rows = self.kernels.empty(row.shape, row.dtype)
        self.kernels.pack(row, self.rows.reshape(-1))
        self.segments = Segments(np.array([0, self.other.size]))

    def prepare(self, step: int) -> None:
        super().prepare(step)
        self.other.fill(0)
        for state, first in zip(self.states, self.first, strict=True):
            state.fill(first)

    def run(self, mark: Marks) -> None:
        self.kernels.update(
            self.program, self.other, self.flat, self.states, self.rows, self.segments
        )

    def wrong(self) -> int:
        # As many steps as calls, all with the same gradient: the double sum of it.
        scale = -LEARNING_RATE * CALLS * (CALLS + 1) / 2 / self.divisor
        rank, pattern = self.work.job.comm.rank, self.work.job.pattern
        return sum(
            pattern.wrong(array, scale, scale * addend(rank, self.step, key), start=key)
            for key, array in enumerate(self.work.views(self.other))
        )


class Adam(Update):
    """Adam: reads weights, gradients, means and variances, and writes all but the gradients."""

    passes = 7
    least = 0.5
    program = "adam"
    # A sum in place of the mean, and a variance that stays 4: the weights are exact.
    first = (0.0, 4.0)
    scalars = (LEARNING_RATE, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, -1.0)
    divisor = 2.0


def run(job: Job) -> None:
    name = job.options.models[0]
    work = Workload(job, MODELS[name]())
    if not job.fits(f"kernels on the keys of {name}", 15 * work.nbytes):
        return
    candidates: list[Kernel] = [Copy(work), Pack(work), Unpack(work), Update(work), Adam(work)]
    results = take_turns(job, "kernels", candidates)
    title = f"kernels on the keys of {name}, {work.nbytes / MIB:.1f} MiB; GB/s of one pass"
    table.table(job, title, results, work.nbytes, "copy")
    copied = _speed(results["copy"], work.nbytes, Copy.passes)
    job.print(f"# copy: {copied:.1f} GB/s read and written")
    for candidate in candidates[1:]:
        speed = _speed(results[candidate.name], work.nbytes, candidate.passes)
        text = f"{candidate.name} bandwidth / copy bandwidth"
        table.floor(job, text, speed / copied, candidate.least, least=True)
    job.print()


def _speed(found: Result, nbytes: int, passes: int) -> float:
    """Return the bandwidth in GB/s."""
    return passes * nbytes / found.median / 1e9
