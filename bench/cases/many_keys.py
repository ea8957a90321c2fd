"""Equal bytes as few keys and as many keys."""

from __future__ import annotations

from bench.candidates.store import Lists
from bench.data import Sum
from bench.job import Job
from bench.models import Shapes
from bench.options import MIB
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, take_turns
from bench.workload import Workload

NBYTES = 64 * MIB
FEW, MANY = 10, 10_000
BETWEEN = 1000


def run(job: Job) -> None:
    counts = (FEW, MANY) if job.options.quick else (FEW, BETWEEN, MANY)
    if not job.fits(f"{size_text(NBYTES)} as 10 and as 10,000 keys", 4 * len(counts) * NBYTES):
        return
    stores = [job.store() for _ in counts]
    candidates: list[Candidate] = []
    for kv, keys in zip(stores, counts, strict=True):
        shapes: Shapes = {f"key{index}": (NBYTES // 4 // keys,) for index in range(keys)}
        work = Workload(job, shapes)
        kv.init(work.names, work.gradients)
        candidates.append(Lists(work, kv, Sum(job.comm.size), _name(keys)))
    results = take_turns(job, "many keys", candidates)
    for kv in stores:
        kv.close()
    table.table(job, f"{size_text(NBYTES)} by lists", results, NBYTES, _name(FEW))
    work = f"push and pull of {size_text(NBYTES)} as {_name(MANY)}"
    table.ratio(job, work, results, _name(MANY), [_name(FEW)], 1.8)
    job.print()


def _name(keys: int) -> str:
    return f"{keys:,} keys"
