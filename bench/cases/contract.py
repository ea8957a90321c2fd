"""Cost of recording and comparing calls: flushes with the call log, and without."""

from __future__ import annotations

from bench.candidates.store import Lists
from bench.cases.short_flush import OneKey
from bench.data import Sum
from bench.job import Job
from bench.models import Shapes
from bench.options import KIB, MIB
from bench.report import table
from bench.rounds import Candidate, Marks, take_turns
from bench.workload import Workload

SHORT, SHORT_CALLS = 4 * KIB, 1000
LONG, LONG_KEYS, LONG_CALLS = 64 * MIB, 200, 5
NOTED, UNNOTED = "as ever", "calls not noted"


class Unnoted(Candidate):
    """Steps of another candidate, with the call log turned off."""

    def __init__(self, as_ever: Lists) -> None:
        self.name = UNNOTED
        self.calls = as_ever.calls
        self._as_ever = as_ever

    def prepare(self, step: int) -> None:
        self._as_ever.prepare(step)

    def run(self, mark: Marks) -> None:
        # There is no other way to be without them: they are not an option of stores.
        with self._as_ever.kv._operations.quietly():
            self._as_ever.run(mark)

    def wrong(self) -> int:
        return self._as_ever.wrong()


def run(job: Job) -> None:
    if job.comm.size == 1:
        job.print("# one rank: it has nobody to compare its calls with\n")
        return
    with job.store() as kv:
        work = Workload(job, {"key": (SHORT // 4,)})
        kv.init(work.names, work.gradients)
        short = OneKey(work, kv, Sum(job.comm.size), NOTED)
        short.calls = SHORT_CALLS
        _compare(job, "4 KiB, push and wait", short, SHORT, 1.05)
    if not job.fits(f"{LONG} B as {LONG_KEYS} keys", 4 * LONG):
        return
    with job.store() as kv:
        shapes: Shapes = {f"key{number}": (LONG // 4 // LONG_KEYS,) for number in range(LONG_KEYS)}
        work = Workload(job, shapes)
        kv.init(work.names, work.gradients)
        long = Lists(work, kv, Sum(job.comm.size), NOTED)
        long.calls = LONG_CALLS
        _compare(job, f"64 MiB as {LONG_KEYS} keys, lists", long, LONG, 1.01)
    job.print()


def _compare(job: Job, title: str, as_ever: Lists, nbytes: int, bound: float) -> None:
    results = take_turns(job, "notes of calls", [as_ever, Unnoted(as_ever)])
    table.table(job, f"{title}, with and without notes of calls", results, nbytes, UNNOTED)
    table.ratio(job, f"notes of calls, {title}", results, NOTED, [UNNOTED], bound)
