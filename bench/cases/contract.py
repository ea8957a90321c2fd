"""Cost of recording and comparing calls: flushes with the call log, and without."""

from __future__ import annotations

from bench.candidates.store import Lists
from bench.cases.short_flush import OneKey
from bench.cores import one_core_a_rank
from bench.data import Sum
from bench.job import Job
from bench.models import Shapes
from bench.options import KIB, MIB
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, Marks, take_turns
from bench.workload import Workload

SHORT, SHORT_CALLS = 4 * KIB, 1000
LONG, LONG_KEYS, LONG_CALLS = 64 * MIB, 200, 5
LOGGED, UNLOGGED = "with the call log", "without the call log"


class Unlogged(Candidate):
    """Steps of another candidate, with the call log turned off."""

    def __init__(self, logged: Lists) -> None:
        self.name = UNLOGGED
        self.calls = logged.calls
        self._logged = logged

    def prepare(self, step: int) -> None:
        self._logged.prepare(step)

    def run(self, mark: Marks) -> None:
        # Stores have no option that turns the log off.
        with self._logged.kv._context.calls.suspended():
            self._logged.run(mark)

    def wrong(self) -> int:
        return self._logged.wrong()


def run(job: Job) -> None:
    if job.comm.size == 1:
        job.print("# one rank: there are no other calls to compare\n")
        return
    with job.store() as kv:
        work = Workload(job, {"key": (SHORT // 4,)})
        kv.init(work.names, work.gradients)
        short = OneKey(work, kv, Sum(job.comm.size), LOGGED)
        short.calls = SHORT_CALLS
        with one_core_a_rank(job.comm.local_rank):
            _compare(job, "4 KiB, push and wait", short, SHORT, 1.05)
    if not job.fits(f"{size_text(LONG)} as {LONG_KEYS} keys", 4 * LONG):
        return
    with job.store() as kv:
        shapes: Shapes = {f"key{index}": (LONG // 4 // LONG_KEYS,) for index in range(LONG_KEYS)}
        work = Workload(job, shapes)
        kv.init(work.names, work.gradients)
        long = Lists(work, kv, Sum(job.comm.size), LOGGED)
        long.calls = LONG_CALLS
        _compare(job, f"64 MiB as {LONG_KEYS} keys, lists", long, LONG, 1.01)
    job.print()


def _compare(job: Job, title: str, logged: Lists, nbytes: int, bound: float) -> None:
    results = take_turns(job, "call log", [logged, Unlogged(logged)])
    table.table(job, f"{title}, with and without the call log", results, nbytes, UNLOGGED)
    work = f"{title}, with every call recorded and compared,"
    table.ratio(job, work, results, LOGGED, [UNLOGGED], bound)
