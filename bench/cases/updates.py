"""Updates of weights by each optimizer, relative to the time of moving their bytes once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ncclkv.optimizer as optimizers
from bench.job import Job
from bench.options import MIB
from bench.report import table
from bench.report.units import size_text
from bench.rounds import Candidate, Marks, take_turns
from ncclkv.arrays.dtypes import bfloat16
from ncclkv.errors import NotSupported
from ncclkv.kernels.base import Kernels, Measured, Segments
from ncclkv.kernels.host import HostKernels
from ncclkv.kernels.programs import PROGRAMS
from ncclkv.optimizer.base import MASTER, Optimizer

NBYTES = 64 * MIB
"""Bytes of float32 weights, more than the caches hold."""

CALLS = 10
SAMPLE = 1000
"""Elements at the beginning, in the middle and at the end that are checked."""

WIDE, HALF = ("float32",), ("float16", "bfloat16")

Row = tuple[Optimizer, tuple[str, ...], float]

ROWS: tuple[Row, ...] = (
    (optimizers.SGD(), WIDE, 1.3),
    (optimizers.SGD(momentum=0.9), WIDE, 1.18),
    (optimizers.SGD(momentum=0.9), HALF, 1.3),
    (optimizers.SGD(momentum=0.9, multi_precision=True), HALF, 1.3),
    (optimizers.NAG(momentum=0.9), WIDE, 1.3),
    (optimizers.Signum(), WIDE, 1.3),
    (optimizers.Adam(), WIDE + HALF, 2.0),
    (optimizers.Adam(multi_precision=True), HALF, 2.0),
    (optimizers.AdamW(), WIDE, 2.0),
    (optimizers.Adamax(), WIDE, 2.0),
    (optimizers.Nadam(), WIDE, 2.0),
    (optimizers.Lion(), WIDE, 2.0),
    (optimizers.FTML(), WIDE, 2.0),
    (optimizers.AdaDelta(), WIDE, 2.0),
    (optimizers.AdaGrad(), WIDE, 2.0),
    (optimizers.Ftrl(), WIDE, 2.0),
    (optimizers.RMSProp(), WIDE, 2.0),
    (optimizers.RMSProp(centered=True), WIDE, 2.0),
    # Rates with which 16-bit weights change.
    (optimizers.LARS(momentum=0.9, eta=1.0, learning_rate=0.1), WIDE + HALF, 2.5),
    (optimizers.LAMB(learning_rate=0.1), WIDE + HALF, 2.5),
)
"""Optimizer, dtypes of the weights, and goal: time of an update over that of moving its bytes."""

Array = Any


class Copy(Candidate):
    """Copy of one array into another: the bandwidth of memory."""

    name = "copy"
    calls = CALLS

    def __init__(self, job: Job, target: Array, source: Array) -> None:
        self.nbytes = 2 * source.nbytes
        self._copyto = job.memory.xp.copyto
        self._target, self._source = target, source

    def prepare(self, step: int) -> None:
        self._target.fill(-step)

    def run(self, mark: Marks) -> None:
        self._copyto(self._target, self._source)

    def wrong(self) -> int:
        return int((self._target != self._source).sum())


class Updated(NamedTuple):
    """Arrays of an update."""

    weights: Array
    gradients: Array
    states: list[Array]
    master: Array | None

    def moved(self) -> int:
        """Return the bytes of an update that reads and writes each array once.

        Gradients are only read.  Weights that are the rounding of masters are only written.
        """
        kept = [*self.states, self.weights if self.master is None else self.master]
        written = [] if self.master is None else [self.weights]
        return sum(2 * each.nbytes for each in kept) + sum(
            each.nbytes for each in (self.gradients, *written)
        )

    def copied(self, sample: slice, get: Callable[[Array], Array]) -> Updated:
        """Return copies of a sample in host memory."""
        weights, gradients, *states = (
            np.array(get(each[sample])) for each in (self.weights, self.gradients, *self.states)
        )
        master = None if self.master is None else np.array(get(self.master[sample]))
        return Updated(weights, gradients, states, master)


class Update(Candidate):
    """Updates of 16-bit or float32 weights by an optimizer."""

    calls = CALLS

    def __init__(self, job: Job, pool: list[Array], chosen: Optimizer, dtype: Any) -> None:
        first, weights, gradients, master, *others = pool
        states, masters = others[: len(chosen.states)], MASTER in chosen.states_for(dtype)
        self._kernels, self._program, self._first = job.comm.kernels, chosen.program, first
        self._get = getattr(job.memory.xp, "asnumpy", np.asarray)
        self._arrays = Updated(
            weights.view(dtype)[: first.size],
            gradients.view(dtype)[: first.size],
            states,
            master if masters else None,
        )
        self._row = np.array([chosen.scalars(0, 1)])
        self._scalars = self._kernels.empty(self._row.shape, self._row.dtype)
        self._kernels.pack(self._row, self._scalars.reshape(-1))
        self._scratch = self._kernels.measure_scratch(first.size, 1)
        # The sums of squares of each call, if there are any.
        self._sums: list[Array | None] = []
        middle = first.size // 2
        self._samples = [slice(SAMPLE), slice(middle, middle + SAMPLE), slice(-SAMPLE, None)]
        self.nbytes = self._arrays.moved()
        count = len(states)
        kept = f"{count} state{'s' * (count != 1)}" + (" and masters" if masters else "")
        self.name = f"{type(chosen).__name__} of {dtype.name}, {kept}"

    def prepare(self, step: int) -> None:
        arrays = self._arrays
        arrays.weights[...] = self._first
        # Exact in 16 bits, and other values in each step.
        arrays.gradients[...] = self._first + np.float32(step % 16 / 16 + 2)
        for state in arrays.states:
            state.fill(0)
        if arrays.master is not None:
            arrays.master[...] = self._first
        self._sums.clear()
        self._before = [arrays.copied(sample, self._get) for sample in self._samples]

    def run(self, mark: Marks) -> None:
        sums = self._measure(self._kernels, self._arrays, self._scalars)
        self._sums.append(sums)
        self._update(self._kernels, self._arrays, self._scalars, sums)

    def wrong(self) -> int:
        """Return the count of weights that differ from those of the same updates of a sample."""
        wrong = 0
        for sample, arrays in zip(self._samples, self._before, strict=True):
            for sums in self._sums[-CALLS:]:
                self._measure(HostKernels(), arrays, self._row)
                of_all = None if sums is None else np.array(self._get(sums))
                self._update(HostKernels(), arrays, self._row, of_all)
            found = self._arrays.copied(sample, self._get).weights
            wrong += int((found != arrays.weights).sum())
        return wrong

    def _measure(self, kernels: Kernels, arrays: Updated, scalars: Array) -> Array | None:
        """Make the first pass of an optimizer that needs norms; return its sums of squares."""
        norms = PROGRAMS[self._program].norms
        if norms is None:
            return None
        segments = Segments(np.array([0, arrays.weights.size]))
        sums = kernels.zeros(norms.sums, np.dtype(np.float64)).reshape(1, norms.sums)
        weights, gradients, states, master = arrays
        given = weights, gradients, states, scalars, segments, sums, self._scratch
        kernels.measure(self._program, *given, None, master)
        return sums

    def _update(
        self, kernels: Kernels, arrays: Updated, scalars: Array, sums: Array | None
    ) -> None:
        segments = Segments(np.array([0, arrays.weights.size]))
        weights, gradients, states, master = arrays
        given = weights, gradients, states, scalars, segments, None, master
        kernels.update(self._program, *given, None if sums is None else Measured(sums))


def run(job: Job) -> None:
    count = total = min(NBYTES, job.options.max_bytes) // 4
    if not job.fits("updates", 8 * 4 * count):
        return
    if job.comm.local_rank > 0 and not job.options.gpu:
        # One rank of a host has all its bandwidth; the other ranks update little, and wait.
        count = 3 * SAMPLE
    pool = [job.memory.bucket(count) for _ in range(7)]
    # Values of 8 bits, exact in all dtypes.
    pool[0][...] = job.memory.xp.arange(count) % 251 / 256 - 0.5
    rows = [
        (Update(job, pool, each, dtype), goal)
        for each, names, goal in ROWS
        for dtype in map(_dtype, names)
        if dtype is not None
    ]
    copy = Copy(job, pool[1], pool[0])
    results = take_turns(job, "updates", [copy, *(update for update, _ in rows)])
    title = f"updates of {total:,} weights by each optimizer, on one rank of a host"
    table.table(job, title, results, 4 * total, copy.name)
    speed = copy.nbytes / results[copy.name].median
    job.print(f"# copy: {speed / 1e9:.1f} GB/s read and written")
    for update, goal in rows:
        seconds = results[update.name].median
        text = f"{update.name}: {size_text(update.nbytes)}; time / time of moving them once"
        table.floor(job, text, seconds * speed / update.nbytes, goal)
    job.print()


def _dtype(name: str) -> np.dtype[Any] | None:
    """Return a dtype; None for bfloat16 if ``ml_dtypes`` is not installed."""
    try:
        return bfloat16("bench") if name == "bfloat16" else np.dtype(name)
    except NotSupported:
        return None
