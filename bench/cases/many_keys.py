"""The same bytes as few keys and as many."""

from __future__ import annotations

from bench.contenders.store import Lists
from bench.data import Sum
from bench.job import Job
from bench.models import Shapes
from bench.options import MIB
from bench.report import turns
from bench.rounds import Contender, take_turns
from bench.workload import Workload

NBYTES = 64 * MIB
FEW, MANY = 10, 10_000
BETWEEN = 1000


def run(job: Job) -> None:
    counts = (FEW, MANY) if job.options.quick else (FEW, BETWEEN, MANY)
    if not job.fits(f"{NBYTES} B as 10 and as 10,000 keys", 4 * len(counts) * NBYTES):
        return
    stores = [job.store() for _ in counts]
    contenders: list[Contender] = []
    for kv, keys in zip(stores, counts, strict=True):
        shapes: Shapes = {f"key{number}": (NBYTES // 4 // keys,) for number in range(keys)}
        work = Workload(job, shapes)
        kv.init(work.names, work.gradients)
        contenders.append(Lists(work, kv, Sum(job.comm.size), _name(keys)))
    results = take_turns(job, "many keys", contenders)
    for kv in stores:
        kv.close()
    turns.table(job, f"{NBYTES / MIB:g} MiB by lists", results, NBYTES, _name(FEW))
    turns.ratio(job, "many keys", results, _name(MANY), [_name(FEW)], 1.8)
    job.say()


def _name(keys: int) -> str:
    return f"{keys:,} keys"
