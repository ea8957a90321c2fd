"""Allreduce over sizes: the communicator and the libraries, each in memory of its own kind."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from bench.cores import one_core_a_rank
from bench.data import addend, total
from bench.job import Job
from bench.libraries.base import Library, Ours
from bench.options import KIB, MIB
from bench.raw.collectives import Allreduce
from bench.raw.measure import sizes
from bench.report import nccl_tests
from bench.report.units import size_text
from bench.rounds import Candidate, Marks, Result, take_turns
from ncclkv.comm.types import Buffer

OURS, BUCKET, ONE, COPY = "ncclkv", "bucket", "one result", "copy"
"""Columns beside the libraries: sums in place of ordinary arrays, as the libraries make them; of
arrays of a bucket; of a bucket into one result that the ranks of a node share, which is another
contract; and a copy of ordinary arrays by all ranks at once, the machine's limit."""


_TITLE = (
    "allreduce in place over sizes, each rank on one core: median and 5th percentile of a call in",
    "us. Each library has ordinary arrays; 'bucket' is the store's memory, 'one result' of the",
    "ranks of a node another contract, and 'copy' the machine's limit.",
)


class Sums(Candidate):
    """Sums of several arrays in turn, each in place or into another array.

    Parameters
    ----------
    calls : int, optional
        Calls in a turn; by default one for each array, as sums in place must have.
    """

    def __init__(
        self,
        job: Job,
        name: str,
        library: Library,
        arrays: list[Buffer],
        into: list[Buffer] | None = None,
        calls: int | None = None,
    ) -> None:
        self.name = name
        self.calls = len(arrays) if calls is None else calls
        self._job = job
        self._library = library
        self._arrays = arrays
        self._into = arrays if into is None else into

    def prepare(self, step: int) -> None:
        self._step = step
        self._next = 0
        # Ranks that share a result check it before any of them overwrites it, and all overwrite it
        # before any of them writes its sums there.
        self._job.comm.control.barrier("results were checked")
        for array, result in zip(self._arrays, self._into, strict=True):
            if result is not array:
                result.fill(np.nan)
        self._job.comm.control.barrier("results are overwritten")
        for key, array in enumerate(self._arrays):
            self._job.pattern.fill(array, addend(self._job.comm.rank, step, key))

    def run(self, mark: Marks) -> None:
        at = self._next
        self._next = (at + 1) % len(self._arrays)
        self._library.start(self._arrays[at], self._into[at])()

    def wrong(self) -> int:
        size, wrong = self._job.comm.size, self._job.pattern.wrong
        return sum(
            wrong(result, size, total(size, self._step, key))
            for key, result in enumerate(self._into)
        )


class Copies(Sums):
    """Copies of the arrays, which a sum cannot be faster than."""

    def run(self, mark: Marks) -> None:
        at = self._next
        self._next = (at + 1) % len(self._arrays)
        self._into[at][...] = self._arrays[at]

    def wrong(self) -> int:
        rank, wrong = self._job.comm.rank, self._job.pattern.wrong
        return sum(
            wrong(result, 1, addend(rank, self._step, key)) for key, result in enumerate(self._into)
        )


def run(job: Job) -> None:
    nominal = sizes(job.options.max_bytes, job.options.factor)
    names = [OURS, *(library.name for library in job.libraries), BUCKET, ONE, COPY]
    for line in _TITLE:
        job.print(f"# {line}")
    job.print("# " + f"{'size':>10}" + "".join(f"  {name:>17}" for name in names) + "  #wrong")
    rows = []
    for nbytes in nominal:
        found = _one_size(job, nbytes)
        rows.append((nbytes, found))
        cells = "".join(f"  {_cell(found.get(name)):>17}" for name in names)
        job.print(f"  {size_text(nbytes):>10}{cells}  {sum(r.wrong for r in found.values()):6d}")
    job.print()
    job.record["sizes"] = [_record(job, nbytes, found) for nbytes, found in rows]
    if job.comm.size > 1:
        _bandwidths(job, [name for name in names if name != COPY])
    if job.libraries:
        _crossover(job, rows)


def _record(job: Job, nbytes: int, found: dict[str, Result]) -> dict[str, Any]:
    """Return the times of one size in seconds, and the bus bandwidths in GB/s, as JSON values."""
    factor = Allreduce().factor(job.comm.size) / 1e9
    return {
        "bytes": nbytes,
        "median": {name: each.median for name, each in found.items()},
        "p5": {name: each.p5 for name, each in found.items()},
        "least": {name: min(each.seconds) for name, each in found.items()},
        "most": {name: max(each.seconds) for name, each in found.items()},
        "busbw": {n: nbytes * factor / each.median for n, each in found.items() if n != COPY},
        "wrong": sum(each.wrong for each in found.values()),
    }


def _bandwidths(job: Job, names: list[str]) -> None:
    """Print the bus bandwidths, by which counts of ranks can be compared."""
    job.print("# bus bandwidth of the medians in GB/s: 2 (n - 1) / n of the bytes, over the time")
    job.print("# " + f"{'size':>10}" + "".join(f"  {name:>10}" for name in names))
    for row in job.record["sizes"]:
        speeds = (row["busbw"].get(name) for name in names)
        cells = (f"{'-' if each is None else nccl_tests.format_number(each, 6)}" for each in speeds)
        job.print(f"  {size_text(row['bytes']):>10}" + "".join(f"  {cell:>10}" for cell in cells))
    job.print()


def _one_size(job: Job, nbytes: int) -> dict[str, Result]:
    """Measure all candidates on arrays of one size; collective."""
    calls = 20 if nbytes <= 64 * KIB else 5 if nbytes <= MIB else 1
    count = nbytes // 4

    def ordinary() -> list[Buffer]:
        return [job.memory.empty(count) for _ in range(calls)]

    ours = Ours(job.comm)
    bucket = [job.memory.bucket(count) for _ in range(calls)]
    candidates: list[Candidate] = [
        Sums(job, OURS, ours, ordinary()),
        *(Sums(job, each.name, each, ordinary()) for each in job.libraries),
        Sums(job, BUCKET, ours, bucket),
        Copies(job, COPY, ours, ordinary(), ordinary()),
    ]
    common = [job.memory.common(count) for _ in range(calls)]
    shared = [each for each in common if each is not None]
    if shared:
        candidates.append(Sums(job, ONE, ours, bucket, shared))
    with _placed(job):
        found = take_turns(job, "", candidates)
    for library in job.libraries:
        library.forget()
    return found


def _placed(job: Job) -> AbstractContextManager[None]:
    """Keep each rank on one core; a GPU's ranks are where the system has them."""
    return nullcontext() if job.options.gpu else one_core_a_rank(job.comm.local_rank)


def _cell(found: Result | None) -> str:
    return "-" if found is None else f"{found.median * 1e6:.1f} {found.p5 * 1e6:.1f}"


def _crossover(job: Job, rows: list[tuple[int, dict[str, Result]]]) -> None:
    """Print at how many sizes each library is the fastest, and our time over the best one."""
    names = [OURS, *(library.name for library in job.libraries)]
    fastest = [min(names, key=lambda name: found[name].median) for _, found in rows]
    ratios = [
        found[OURS].median / min(found[name].median for name in names[1:]) for _, found in rows
    ]
    wins = ", ".join(f"{name} at {fastest.count(name)}" for name in dict.fromkeys(fastest))
    job.print(
        f"# in ordinary arrays the fastest is {wins} of {len(rows)} sizes; our time over the best "
        f"library's: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to "
        f"{max(ratios):.2f}"
    )
    job.print()
