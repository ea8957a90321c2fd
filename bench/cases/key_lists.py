"""1,000 keys of 1 KiB in a store of one rank, beside plain copies of the same arrays."""

from __future__ import annotations

import warnings

import ncclkv
from bench.candidates.store import Lists
from bench.data import Sum
from bench.job import Job
from bench.report import table
from bench.rounds import Candidate, Marks, take_turns
from bench.workload import Workload
from ncclkv.comm.solo import SoloCommunicator

KEYS, ELEMENTS = 1000, 256
STORE, COPYTO, ASSIGN = "store, lists", "copyto, in and out", "d[...] = v, in and out"


class Bare(Candidate):
    """Every array copied to a buffer of its own, and from the buffer to its out."""

    def __init__(self, work: Workload, name: str) -> None:
        self.name = name
        self._work = work
        self._slots = work.views(work.job.memory.empty(KEYS * ELEMENTS))
        self._expected = Sum(1)

    def prepare(self, step: int) -> None:
        self._work.fill(step)
        self._work.overwrite_outs()
        self._expected.advance(step)

    def run(self, mark: Marks) -> None:
        work, copyto = self._work, self._work.job.memory.xp.copyto
        for targets, arrays in ((self._slots, work.gradients), (work.outs, self._slots)):
            for target, array in zip(targets, arrays, strict=True):
                copyto(target, array)

    def wrong(self) -> int:
        return self._work.wrong(self._work.outs, self._expected)


class Assigned(Bare):
    """Copies by assignment, which NumPy dispatches faster than `np.copyto`."""

    def run(self, mark: Marks) -> None:
        work = self._work
        for targets, arrays in ((self._slots, work.gradients), (work.outs, self._slots)):
            for target, array in zip(targets, arrays, strict=True):
                target[...] = array


def run(job: Job) -> None:
    """Run the part on rank 0, as one process; the other ranks wait for the result."""
    mine = _alone(job) if job.comm.rank == 0 else (0, {})
    wrong, record = job.comm.control.broadcast(mine, 0, "what rank 0 found alone")
    job.wrong += wrong
    for part, found in record.items():
        job.record.setdefault(part, []).extend(found)


def _alone(job: Job) -> tuple[int, dict[str, list[object]]]:
    """Measure in this process alone."""
    # One rank, but in the memory of the job's own communicator.
    comm = job.comm if job.comm.size == 1 else SoloCommunicator(job.comm.timeout)
    single = Job(comm, type(job.memory)(comm), job.options, stream=job.stream)
    work = Workload(single, {f"key{index}": (ELEMENTS,) for index in range(KEYS)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a store of this rank alone is intended
        kv = ncclkv.create(job.memory.alone)
    with kv:
        kv.init(work.names, work.gradients)
        candidates = [
            Lists(work, kv, Sum(1), STORE),
            Bare(work, COPYTO),
            Assigned(work, ASSIGN),
        ]
        results = take_turns(single, "1,000 keys alone", candidates)
    title = "push and pull of 1,000 keys of 1 KiB, one rank"
    table.table(single, title, results, work.nbytes, COPYTO)
    table.ratio(single, title, results, STORE, [COPYTO], 1.2)
    single.print()
    return single.wrong, single.record
