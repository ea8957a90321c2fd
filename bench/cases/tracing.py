"""The store's step with a trace, and with metrics, beside the same step without."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory

import ncclkv
from bench.candidates.store import Lists
from bench.data import LEARNING_RATE, MOMENTUM, Descent
from bench.job import Job
from bench.models import MODELS, elements
from bench.options import MIB
from bench.report import table
from bench.rounds import Candidate, take_turns
from bench.workload import Workload
from ncclkv.observe.counter import Counter
from ncclkv.observe.tracer import Tracer

OFF, TRACED, COUNTED = "observed by nobody", "traced", "with metrics"
COPIES = 10
"""Copies of a model's bytes in memory, on every rank."""

BOUND = 1.02
"""Most time of an observed step, in that of a step that nobody observes."""


class Observed(Lists):
    """A step with instruments, which the store has in these turns alone."""

    instruments: Sequence[ncclkv.Instrument] = ()

    def prepare(self, step: int) -> None:
        super().prepare(step)
        for each in self.instruments:
            self.kv.add_instrument(each)

    def wrong(self) -> int:
        for each in self.instruments:
            self.kv.remove_instrument(each)
        return super().wrong()


def run(job: Job) -> None:
    """Measure each model in one store, whose instruments come and go."""
    for name in job.options.models:
        shapes = MODELS[name]()
        nbytes = 4 * elements(shapes)
        what = f"{name}: {len(shapes)} keys, {nbytes / MIB:.1f} MiB, with SGD, observed"
        if not job.fits(what, COPIES * nbytes):
            continue
        work = Workload(job, shapes)
        for gradient in work.gradients:
            gradient.fill(0)
        with job.store() as kv, TemporaryDirectory() as folder:
            kv.init(work.names, work.gradients)
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=LEARNING_RATE, momentum=MOMENTUM))
            rank, size = job.comm.rank, job.comm.size
            tracer = Tracer(folder, kv.type, name, rank, size)
            expected = Descent(size)
            candidates: list[Candidate] = []
            for title, instruments in (
                (OFF, []),
                (TRACED, [tracer]),
                (COUNTED, [Counter(rank, size)]),
            ):
                candidate = Observed(work, kv, expected, title)
                candidate.instruments = instruments
                candidates.append(candidate)
            results = take_turns(job, f"{name}, observed", candidates)
            tracer.stop()
        table.table(job, what, results, work.nbytes, OFF)
        table.ratio(job, f"{name}, traced", results, TRACED, [OFF], BOUND)
        table.ratio(job, f"{name}, with metrics", results, COUNTED, [OFF], BOUND)
        job.print()
