"""Sums, and push and pull, of 16-bit floats, beside as many elements of float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.job import Job
from bench.report import table
from bench.rounds import Candidate, Marks, take_turns
from ncclkv.arrays.dtypes import bfloat16
from ncclkv.errors import NotSupported
from ncclkv.kernels.host import HostKernels

COUNT, KEYS = 12_000_000, 8
"""Elements, which no cache holds, and the keys that they are pushed as."""

NARROW = ("float16", "bfloat16")

Array = Any


class RankSum(Candidate):
    """A sum of arrays of one rank."""

    def __init__(self, parts: Sequence[Array], name: str) -> None:
        self.name = name
        self._parts, self._total = parts, np.empty_like(parts[0])

    def prepare(self, step: int) -> None:
        for index, part in enumerate(self._parts):
            part.fill(step % 7 + index)
        self._total.fill(np.nan)

    def run(self, mark: Marks) -> None:
        HostKernels().reduce(self._parts, self._total, "sum")

    def wrong(self) -> int:
        wanted = self._total.dtype.type(sum(float(part[0]) for part in self._parts))
        return int((self._total != wanted).sum())


class Keys(Candidate):
    """One push and one pull of all keys of a dtype."""

    def __init__(self, job: Job, kv: Any, array: Array) -> None:
        self.name = str(array.dtype.name)
        self._kv, self._size, self._array = kv, job.comm.size, array
        self._gradients = np.split(array, KEYS)
        self._outs = np.split(np.empty_like(array), KEYS)
        self._keys = [f"{self.name} {index}" for index in range(KEYS)]
        kv.init(self._keys, self._gradients)

    def prepare(self, step: int) -> None:
        self._array.fill(step % 7)
        for out in self._outs:
            out.fill(np.nan)

    def run(self, mark: Marks) -> None:
        self._kv.push(self._keys, self._gradients)
        mark("push")
        self._kv.pull(self._keys, out=self._outs)
        mark("pull")

    def wrong(self) -> int:
        wanted = float(self._array[0]) * self._size
        return sum(int((out != out.dtype.type(wanted)).sum()) for out in self._outs)


def run(job: Job) -> None:
    """Measure each sum, then the store's step; collective."""
    dtypes = _dtypes(job)
    what = f"{COUNT:,} elements as {', '.join(dtypes)}"
    # Four parts and a sum of each dtype, and the store's buckets, gradients and outs.
    if not job.fits(what, 5 * COUNT * (4 + 2 + 2)):
        return
    for count in (2, 4):
        sums = [
            RankSum([np.zeros(COUNT, dtype) for _ in range(count)], str(np.dtype(dtype).name))
            for dtype in dtypes.values()
        ]
        _compare(job, f"sum of {count} arrays on each rank", sums, 0.9)
    with job.store() as kv:
        steps = [Keys(job, kv, np.zeros(COUNT, dtype)) for dtype in dtypes.values()]
        _compare(job, f"push and pull of {KEYS} keys", steps, 0.8)


def _dtypes(job: Job) -> dict[str, Any]:
    """Return float32 first, and the dtypes of 16 bits that are installed."""
    found: dict[str, Any] = {"float32": np.float32, "float16": np.float16}
    try:
        found["bfloat16"] = bfloat16("the benchmark")
    except NotSupported as error:
        job.print(f"# bfloat16 is left out: {error}")
    return found


def _compare(job: Job, title: str, candidates: Sequence[Candidate], bound: float) -> None:
    """Print the times of candidates, each beside that of float32; collective."""
    results = take_turns(job, title, candidates)
    table.table(job, f"{title}, {COUNT:,} elements", results, 4 * COUNT, "float32")
    for name in NARROW:
        if name in results:
            table.ratio(job, title, results, name, ["float32"], bound)
    job.print()
