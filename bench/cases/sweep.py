"""Allreduce over sizes: the communicator and the libraries."""

from __future__ import annotations

import statistics

import numpy as np

from bench.data import addend, total
from bench.job import Job
from bench.libraries.base import Library, Ours
from bench.options import KIB, MIB
from bench.raw.measure import sizes
from bench.rounds import Candidate, Marks, Result, take_turns
from ncclkv.comm.types import Buffer


class OneSum(Candidate):
    """Sum of one array into another; torch, which sums only in place, copies first."""

    def __init__(
        self, job: Job, library: Library, send: Buffer, receive: Buffer, calls: int
    ) -> None:
        self.name = library.name
        self.calls = calls
        self._job = job
        self._library = library
        self._send = send
        self._receive = receive

    def prepare(self, step: int) -> None:
        self._step = step
        self._job.pattern.fill(self._send, addend(self._job.comm.rank, step))
        self._receive.fill(np.nan)

    def run(self, mark: Marks) -> None:
        self._library.start(self._send, self._receive)()

    def wrong(self) -> int:
        size = self._job.comm.size
        return self._job.pattern.wrong(self._receive, size, total(size, self._step))


def run(job: Job) -> None:
    libraries = [Ours(job.comm), *job.libraries]
    nominal = sizes(job.options.max_bytes, job.options.factor)
    space = job.memory.bucket(nominal[-1] // 4), job.memory.bucket(nominal[-1] // 4)
    job.print("# allreduce over sizes, out of place: median time in us, and #wrong of all ranks")
    job.print("# " + f"{'size':>10}" + "".join(f"  {each.name:>12} #wrong" for each in libraries))
    rows = []
    for nbytes in nominal:
        rows.append((nbytes, _one_size(job, libraries, nbytes, space)))
        cells = (f"  {each.median * 1e6:12.2f} {each.wrong:6d}" for each in rows[-1][1].values())
        job.print(f"  {nbytes:10d}" + "".join(cells))
    job.print()
    job.record["sizes"] = [
        {
            "bytes": nbytes,
            "median": {name: each.median for name, each in found.items()},
            "wrong": sum(each.wrong for each in found.values()),
        }
        for nbytes, found in rows
    ]
    if len(libraries) > 1:
        _crossover(job, rows)


def _one_size(
    job: Job, libraries: list[Library], nbytes: int, space: tuple[Buffer, Buffer]
) -> dict[str, Result]:
    """Measure all libraries on arrays of one size, which they share."""
    send, receive = (buffer[: nbytes // 4] for buffer in space)
    calls = 20 if nbytes <= 64 * KIB else 5 if nbytes <= MIB else 1
    candidates = [OneSum(job, library, send, receive, calls) for library in libraries]
    return take_turns(job, "", candidates)


def _crossover(job: Job, rows: list[tuple[int, dict[str, Result]]]) -> None:
    """Print at how many sizes each library is the fastest, and our time over the best one."""
    fastest = [min(found.values(), key=lambda each: each.median).name for _, found in rows]
    ratios = []
    for _, found in rows:
        ours, *others = found.values()
        ratios.append(ours.median / min(each.median for each in others))
    wins = ", ".join(f"{name} at {fastest.count(name)}" for name in dict.fromkeys(fastest))
    job.print(
        f"# fastest: {wins} of {len(rows)} sizes; our time over the best library's: median "
        f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
    )
    job.print()
