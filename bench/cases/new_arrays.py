"""Steps with new arrays each time, as torch's gradients are by default, beside the same arrays."""

from __future__ import annotations

import ncclkv
from bench.candidates.store import Lists
from bench.cores import one_core_a_rank
from bench.data import Sum
from bench.job import Job
from bench.models import Shapes
from bench.options import KIB
from bench.report import table
from bench.rounds import Candidate, take_turns
from bench.workload import Workload

KEYS, NBYTES = 161, 4 * KIB
SAME, NEW = "the same arrays each step", "new arrays each step"
TITLE = f"push and pull of {KEYS} keys of {NBYTES // KIB} KiB by lists"


class NewLists(Lists):
    """One push and one pull of all keys, of arrays that no step before has had."""

    def prepare(self, step: int) -> None:
        work = self.work
        work.gradients = [work.job.memory.empty(shape) for shape in work.shapes]
        work.outs = [work.job.memory.empty(shape) for shape in work.shapes]
        super().prepare(step)


def run(job: Job) -> None:
    shapes: Shapes = {f"key{index}": (NBYTES // 4,) for index in range(KEYS)}
    candidates: list[Candidate] = []
    stores: list[ncclkv.KVStore] = []
    for kind, name in ((Lists, SAME), (NewLists, NEW)):
        work, kv = Workload(job, shapes), job.store()
        kv.init(work.names, work.gradients)
        stores.append(kv)
        candidates.append(kind(work, kv, Sum(job.comm.size), name))
    with one_core_a_rank(job.comm.local_rank):
        results = take_turns(job, "new arrays", candidates)
    for kv in stores:
        kv.close()
    table.table(job, TITLE, results, KEYS * NBYTES, SAME)
    job.print()
