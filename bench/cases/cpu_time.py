"""CPU time of a steady step's calls, on rank 0."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import ncclkv
from bench.candidates.store import Lists, Views
from bench.data import Sum
from bench.job import Job
from bench.models import MODELS
from bench.report import table
from bench.workload import Workload
from ncclkv.errors import NotSupported

STEPS = 30


class PushpullViews(Views):
    """``pushpull`` of the store's own gradient views, which also receive the values."""

    def call(self) -> None:
        self.kv.pushpull(self.work.names, self.gradients)

    def wrong(self) -> int:
        return self.work.wrong(self.gradients, self.expected)


class PushpullArrays(Lists):
    """``pushpull`` of the user's own arrays."""

    def call(self) -> None:
        self.kv.pushpull(self.work.names, self.work.gradients, out=self.work.outs)


def run(job: Job) -> None:
    name = job.options.models[0]
    work = Workload(job, MODELS[name]())
    expected = Sum(job.comm.size)
    kv: ncclkv.KVStore = job.store()
    with kv:
        kv.init(work.names, work.gradients)
        views = PushpullViews(work, kv, expected)
        arrays = PushpullArrays(work, kv, expected)
        floors = "; the floors are a GPU store's" if job.options.floors else ""
        job.print(f"# CPU time of one steady pushpull of {len(work.names)} keys of {name}{floors}")
        for candidate, call, bound in (
            (views, views.call, 100.0),
            (arrays, arrays.call, 1000.0),
        ):
            seconds, wrong = measure(job, candidate, call)
            kind = "views" if candidate is views else "plain arrays"
            what = f"CPU time of a pushpull of {len(work.names)} {kind}"
            table.floor(job, what, seconds * 1e6, bound, unit=" us")
            job.wrong += wrong
        replay(job, arrays)
    job.print()


def replay(job: Job, candidate: PushpullArrays) -> None:
    """Measure a replay of the step, on communicators that can capture it."""
    try:
        with candidate.kv.capture() as step:
            candidate.call()
    except NotSupported as error:
        job.print(f"  no figure of a captured pushpull: {error}")
        return
    seconds, wrong = measure(job, candidate, step.replay)
    name = f"the last one captured, and replayed ({len(candidate.work.names)} keys)"
    job.print(f"  {seconds * 1e6:8.3f} us  {name}")
    job.record["replay_us"] = seconds * 1e6
    job.wrong += wrong


def measure(job: Job, candidate: Lists, call: Callable[[], None]) -> tuple[float, int]:
    """Return the median CPU seconds of a call in this thread, and wrong elements over all ranks."""
    times, wrong = [], 0
    for step in range(1, STEPS + job.options.warmups + 1):
        candidate.prepare(step)
        job.barrier()
        gc.disable()
        begin = time.thread_time()
        call()
        times.append(time.thread_time() - begin)
        gc.enable()
        job.memory.synchronize()
        wrong += candidate.wrong()
    wrong = sum(job.comm.control.allgather(wrong, "wrong"))
    return statistics.median(times[job.options.warmups :]), wrong
