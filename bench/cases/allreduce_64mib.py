"""Allreduce of 64 MiB out of bucket memory: into one result a node, and into each rank's own."""

from __future__ import annotations

from bench.candidates.baselines import Flat, cut
from bench.data import Sum
from bench.job import Job
from bench.libraries.base import Library, Ours
from bench.options import MIB
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, Marks, take_turns
from bench.workload import Workload
from ncclkv.comm.types import Buffer

NBYTES = 64 * MIB
ONE, IN_PLACE = "ncclkv, one result a node", "ncclkv, in place in a bucket"
OWN = "ncclkv, into the rank's own array"
SLICES = "1 MiB slices"


class Into(Flat):
    """Sum of a bucket into other memory."""

    def __init__(
        self,
        work: Workload,
        library: Library,
        bucket: Buffer,
        result: Buffer,
        expected: Sum,
        name: str,
    ) -> None:
        super().__init__(work, library, [bucket], [bucket], expected, name)
        self.result = result

    def prepare(self, step: int) -> None:
        super().prepare(step)
        self.work.overwrite_outs()

    def run(self, mark: Marks) -> None:
        self.library.start(self.chunks[0], self.result)()

    def wrong(self) -> int:
        return self.work.wrong([self.result], self.expected)


def run(job: Job) -> None:
    if not job.fits(f"allreduce of {size_text(NBYTES)}", 4 * NBYTES):
        return
    work = Workload(job, {"all": (NBYTES // 4,)})
    expected = Sum(job.comm.size)
    bucket, plain = job.memory.bucket(NBYTES // 4), work.gradients[0]
    ours = Ours(job.comm)
    candidates: list[Candidate] = [
        Flat(work, ours, [bucket], [bucket], expected, IN_PLACE),
        Into(work, ours, bucket, work.outs[0], expected, OWN),
    ]
    common, best = job.memory.common(NBYTES // 4), IN_PLACE
    if common is not None:
        candidates.append(Into(work, ours, bucket, common, expected, ONE))
        best = ONE
    for library in job.libraries:
        candidates.append(Flat(work, library, [plain], [plain], expected, library.name))
    for library in job.libraries:
        if library.name == "MPI":
            chunks = cut(plain, MIB)
            name = f"{library.name}, {SLICES}"
            candidates.append(Flat(work, library, chunks, [plain], expected, name))
    results = take_turns(job, "allreduce", candidates)
    table.table(job, f"allreduce of {size_text(NBYTES)} float32", results, NBYTES, best)
    baselines = [library.name for library in job.libraries]
    one = "a sum in the store's memory, with one result for all ranks of a node,"
    table.ratio(job, one, results, best, baselines, 0.20)
    table.ratio(job, one, results, best, [f"MPI, {SLICES}"], 0.45)
    own = "a sum from the store's memory into an array of each rank's own"
    table.ratio(job, own, results, OWN, baselines, 0.35)
    job.print()
