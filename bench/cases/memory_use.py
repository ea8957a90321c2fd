"""Memory of a store with Adam on 1 to all ranks, as the system counts it, for each placement."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ncclkv
from bench.job import Job
from bench.memory import trim_heap
from bench.options import MIB
from bench.report import table
from bench.report.units import size_text
from ncclkv.comm.base import Communicator
from ncclkv.optimizer import SGD, Adam
from ncclkv.optimizer.base import Optimizer

NBYTES = 32 * MIB
"""Bytes of the weights."""

KEYS = 8
BOUND = 0.1
"""Largest difference of the states' measured bytes, in those that ``explain_plan()`` shows.

Messages between nodes take some MiB more in one run than in another.
"""

COUNTS = Path("/proc/self/smaps_rollup")

_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_STATES = re.compile(
    r"^states of \w+: ([\d,]+) bytes on this rank(?:, ([\d,]+) of them shared)?", re.MULTILINE
)


class Use(NamedTuple):
    """Memory that a store takes on the ranks of one machine, in bytes.

    Attributes
    ----------
    rank : int
        The most of any rank.  A page that several ranks map counts for each in equal parts.
    total : int
        All ranks together.
    declared : int
        The optimizer's states on all ranks, by ``explain_plan()``.
    """

    rank: int
    total: int
    declared: int


def run(job: Job) -> None:
    problem = "" if COUNTS.exists() else f"there is no {COUNTS}"
    if problem := max(job.comm.control.allgather(problem, "memory")):
        job.print(f"# memory is left out: {problem}\n")
        return
    nbytes = min(NBYTES, job.options.max_bytes)
    if not job.fits("memory", 8 * nbytes):
        return
    job.print(f"# memory of a store with {size_text(nbytes)} of weights and Adam, in MiB")
    job.print(f"# {'':<30} {'ranks':>6} {'a rank':>9} {'all ranks':>9} {'of them states':>14}")
    values = [np.ones(nbytes // 4 // KEYS, np.float32) for _ in range(KEYS)]
    rows = [
        _row(job, update_on, shared, size, values)
        for update_on, shared in product(("every_rank", "sharded"), (True, False))
        for size in range(1, job.comm.size + 1)
    ]
    job.record["memory"] = rows
    job.print()
    difference = max(abs(row["states"] / row["declared"] - 1) for row in rows)
    table.floor(job, "bytes of the states: largest difference to explain_plan()", difference, BOUND)
    job.print()


def _row(job: Job, update_on: str, shared: bool, size: int, values: list[Any]) -> dict[str, Any]:
    """Measure and print the memory on the first ranks, with states and without; collective."""
    comm = job.comm.split(0 if job.comm.rank < size else None)
    plain = _use(job, comm, SGD(), values, update_on=update_on, shared=shared)
    adam = _use(job, comm, Adam(), values, update_on=update_on, shared=shared)
    if comm is not None:
        comm.close()
    name = f"{update_on}, {'shared' if shared else 'private'} weights"
    row = {"name": name, "ranks": size, "states": adam.total - plain.total, **adam._asdict()}
    sizes = (row[each] / MIB for each in ("rank", "total", "states"))
    job.print("  {:<30} {:6d} {:9.1f} {:9.1f} {:14.1f}".format(name, size, *sizes))
    return row


def _use(
    job: Job,
    comm: Communicator | None,
    optimizer: Optimizer,
    values: list[Any],
    *,
    update_on: str,
    shared: bool,
) -> Use:
    """Return the memory of a store after two steps, if the rank has `comm`; collective."""
    before = _proportional(job)
    if comm is None:
        found = _proportional(job) - before, 0
        job.barrier()
    else:
        kv: ncclkv.KVStore = ncclkv.create("dist_sync", comm=comm, update_on=update_on)
        with kv:
            if not shared:
                # A function may write to the weights, so each rank gets weights of its own.
                kv.set_updater(lambda key, total, stored: None)
            keys = list(range(len(values)))
            kv.init(keys, values)
            kv.set_optimizer(optimizer)
            for _ in range(2):
                kv.push(keys, values)
                kv.pull(keys, out=values)
            found = _proportional(job) - before, _states(kv, comm)
            job.barrier()
    uses, declared = zip(*job.comm.control.allgather(found, "memory"), strict=True)
    return Use(max(uses), sum(uses), sum(declared))


def _proportional(job: Job) -> int:
    """Return the bytes of this process, where shared pages count in parts; collective."""
    # No `gc.collect`: it takes half a second beside torch, and a closed store is in no cycle.
    trim_heap()
    job.barrier()
    found = _PSS.search(COUNTS.read_text())
    job.barrier()
    return 0 if found is None else int(found[1]) * 1024


def _states(kv: ncclkv.KVStore, comm: Communicator) -> int:
    """Return the bytes of the states of this rank; states of a node count for its first rank."""
    found = _STATES.search(kv.explain_plan())
    if found is None:
        return 0
    every, common = (int((text or "0").replace(",", "")) for text in found.groups())
    return every if comm.local_rank == 0 else every - common
