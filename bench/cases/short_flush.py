"""Push and flush of 4 KiB, with its deadline, beside the MPI library's own call."""

from __future__ import annotations

import ncclkv
from bench.candidates.store import Lists
from bench.cases.sweep import Sums
from bench.cores import one_core_a_rank
from bench.data import Sum
from bench.job import Job
from bench.libraries.base import Library, Ours
from bench.libraries.torch_dist import TorchLibrary
from bench.options import KIB
from bench.report import table
from bench.rounds import Candidate, Marks, take_turns
from bench.workload import Workload

NBYTES = 4 * KIB
STORE = "store, push and wait"
CALLS, SLOW_CALLS = 1000, 100
"""Calls in a turn: enough to settle how the ranks share the cores.  Gloo's take milliseconds."""


class OneKey(Lists):
    """Push of one key, followed by a wait."""

    calls = CALLS

    def run(self, mark: Marks) -> None:
        self.kv.push(self.work.names[0], self.work.gradients[0])
        self.kv.wait(self.work.names[0])

    def wrong(self) -> int:
        self.kv.pull(self.work.names, out=self.work.outs)
        return super().wrong()


def run(job: Job) -> None:
    work = Workload(job, {"key": (NBYTES // 4,)})
    kv: ncclkv.KVStore = job.store()
    with kv, one_core_a_rank(job.comm.local_rank):
        kv.init(work.names, work.gradients)
        send, receive = job.memory.bucket(NBYTES // 4), job.memory.bucket(NBYTES // 4)
        libraries = [Ours(job.comm), *job.libraries]
        candidates: list[Candidate] = [
            Sums(job, each.name, each, [send], [receive], _calls(each)) for each in libraries
        ]
        candidates.append(OneKey(work, kv, Sum(job.comm.size), STORE))
        results = take_turns(job, "4 KiB", candidates)
    table.table(
        job, "4 KiB, the mean of many calls, each rank on one core", results, NBYTES, Ours.name
    )
    table.ratio(job, "a sum of 4 KiB", results, Ours.name, ["MPI"], 0.8)
    table.ratio(job, "push and wait of a key of 4 KiB", results, STORE, [Ours.name], 3.0)
    job.print()


def _calls(library: Library) -> int:
    """Return the count of a library's calls in a turn."""
    return SLOW_CALLS if isinstance(library, TorchLibrary) else CALLS
