"""A store's step with ``verify_every``: checksums compared at every flush or every hundredth."""

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
KEYS = 200
OFF = "never"
CALLS = {OFF: 10, "every flush": 10, "every 100 flushes": 100}
"""Steps of a turn: at least one whole period of ``verify_every``."""


def run(job: Job) -> None:
    if not job.fits(f"{size_text(NBYTES)} as {KEYS} keys in {len(CALLS)} stores", 8 * NBYTES):
        return
    shapes: Shapes = {f"key{index}": (NBYTES // 4 // KEYS,) for index in range(KEYS)}
    work = Workload(job, shapes)
    stores = [job.store(), job.store(verify_every=1), job.store(verify_every=100)]
    candidates: list[Candidate] = []
    for kv, (name, calls) in zip(stores, CALLS.items(), strict=True):
        kv.init(work.names, work.gradients)
        candidates.append(Lists(work, kv, Sum(job.comm.size), name))
        candidates[-1].calls = calls
    results = take_turns(job, "comparing values", candidates)
    for kv in stores:
        kv.close()
    title = f"{size_text(NBYTES)} as {KEYS} keys, values compared"
    table.table(job, title, results, NBYTES, OFF)
    job.print()
