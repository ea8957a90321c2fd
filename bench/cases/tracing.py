"""The store's step with a trace, and with metrics, beside the same step without.

On a machine with other load the medians differ by more than the cost.  So the processor time inside
the instruments is measured, too, and compared with the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory

import ncclkv
from bench.candidates.store import Lists
from bench.data import LEARNING_RATE, MOMENTUM, Descent
from bench.job import Job
from bench.models import MODELS, elements
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, take_turns
from bench.workload import Workload
from ncclkv.engine.instrument import EVENTS
from ncclkv.observe.counter import Counter
from ncclkv.observe.tracer import Tracer

OFF, TRACED, COUNTED = "observed by nobody", "traced", "with metrics"
STEPS = 20
COPIES = 10
"""Copies of a model's bytes in memory, on every rank."""

BOUND = 1.02
"""Most time of an observed step, in that of a step that nobody observes."""


class Timed(ncclkv.Instrument):
    """Passes all events to an instrument, and adds up the processor time that it takes.

    Attributes
    ----------
    seconds : float
    """

    def __init__(self, inner: ncclkv.Instrument) -> None:
        self.inner = inner
        self.seconds = 0.0


def _timed(event: str) -> Callable[..., None]:
    """Return the method of `Timed` for an event."""

    def observe(self: Timed, *arguments: object) -> None:
        begin = time.thread_time()
        getattr(self.inner, event)(*arguments)
        self.seconds += time.thread_time() - begin

    return observe


for _event in EVENTS:
    setattr(Timed, _event, _timed(_event))


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
    """Measure each model in one store, whose instruments come and go; collective."""
    for name in job.options.models:
        shapes = MODELS[name]()
        nbytes = 4 * elements(shapes)
        what = f"{name}: {len(shapes)} keys, {size_text(nbytes)}, with SGD, observed"
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
            shares = {
                title: _share(job, kv, work, each, results[OFF].median)
                for title, each in ((TRACED, tracer), (COUNTED, Counter(rank, size)))
            }
            tracer.stop()
        table.table(job, what, results, work.nbytes, OFF)
        table.ratio(job, f"push and pull for {name}, traced,", results, TRACED, [OFF], BOUND)
        table.ratio(job, f"push and pull for {name}, with metrics,", results, COUNTED, [OFF], BOUND)
        for title, share in shares.items():
            what = f"{name}, {title}: processor time of the instrument / time of a step"
            table.floor(job, what, share, BOUND - 1)
        job.print()


def _share(
    job: Job, kv: ncclkv.KVStore, work: Workload, instrument: ncclkv.Instrument, step: float
) -> float:
    """Return the processor time of an instrument over that of a step; collective.

    The greatest of all ranks.
    """
    timed = Timed(instrument)
    kv.add_instrument(timed)
    for _ in range(STEPS):
        kv.push(work.names, work.gradients)
        kv.pull(work.names, out=work.outs)
    kv.wait()
    kv.remove_instrument(timed)
    if isinstance(instrument, Tracer):
        begin = time.thread_time()
        instrument.flush()
        timed.seconds += time.thread_time() - begin
    seconds = job.comm.control.allgather(timed.seconds / STEPS, "processor time")
    return max(seconds) / step
