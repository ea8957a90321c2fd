"""Time and check one collective over sizes, as nccl-tests does.

A time is the duration of many calls divided by their count, averaged over ranks.  Each call takes
the next range of a long buffer, so that short ranges are not found in a cache.  The check runs
after the timing, on data of its own.
"""

from __future__ import annotations

import gc
import os
import socket
from itertools import cycle, islice
from typing import Any

import numpy as np

import ncclkv
from bench.job import Job
from bench.options import MIB
from bench.raw.collectives import Collective, Views
from bench.report import nccl_tests
from bench.report.nccl_tests import Cell, Row
from ncclkv.comm.types import Buffer

ITERATIONS = 20
"""nccl-tests' default; sizes above 12 MiB have fewer, down to 5."""


def iterations(nbytes: int, quick: bool) -> int:
    """Return the count of calls in a timing."""
    most = 5 if quick else ITERATIONS
    return max(2 if quick else 5, min(most, 256 * MIB // nbytes))


def sizes(longest: int, factor: int) -> list[int]:
    """Return sizes from 8 bytes, each `factor` times the one before, up to `longest`."""
    found = [8]
    while found[-1] * factor <= longest:
        found.append(found[-1] * factor)
    return found


def table(job: Job, collective: Collective) -> None:
    """Measure, print and record one collective; all ranks call it."""
    nominal = sizes(job.options.max_bytes, job.options.factor)
    name = f"ncclkv {collective.name}"
    devices = job.comm.control.allgather(device(job), "devices")
    most = iterations(8, job.options.quick)
    for text in nccl_tests.preamble(name, backend(job), nominal, job.options.factor, most, devices):
        job.print(text)
    # As long as the longest row and no shorter than needed, for all sizes.
    longest = collective.total(collective.count(nominal[-1], job.comm.size), job.comm.size)
    space = job.memory.bucket(longest), job.memory.bucket(longest)
    rows = []
    for nbytes in nominal:
        if collective.count(nbytes, job.comm.size):
            rows.append(_row(job, collective, nbytes, space))
            job.print(nccl_tests.line(rows[-1]))
    for text in nccl_tests.footer(name, rows):
        job.print(text)
    job.wrong += nccl_tests.wrong(rows)
    job.record.setdefault("raw", []).append(_as_json(job, collective, rows, devices))


def backend(job: Job) -> str:
    """Describe the library, the backend and their versions in one line."""
    kind = "nccl" if job.options.gpu else "mpi-host" if job.comm.size > 1 else "one process"
    return f"ncclkv {ncclkv.__version__} backend={kind} ({job.comm.name}) numpy={np.__version__}"


def device(job: Job) -> str:
    """Return this rank's line in the list of devices."""
    rank, host = job.comm.rank, socket.gethostname()
    return f"#  Rank {rank:2d} Group  0 Pid {os.getpid():6d} on {host:>10} {job.memory.device()}"


def _row(job: Job, collective: Collective, nbytes: int, space: Views) -> Row:
    """Measure one size; collective."""
    size = job.comm.size
    count = collective.count(nbytes, size)
    total = collective.total(count, size)
    calls = iterations(nbytes, job.options.quick)
    cells: dict[bool, Cell] = {}
    for in_place in collective.halves:
        views = _ranges(job, collective, space, total, in_place)
        own = _time(job, collective, views, calls), _check(job, collective, views[0])
        times, counts = zip(*job.comm.control.allgather(own, "times"), strict=True)
        seconds = sum(times) / size / calls
        cells[in_place] = nccl_tests.cell(seconds, total * 4, collective.factor(size), sum(counts))
    return Row(
        total * 4,
        count,
        collective.redop,
        collective.root,
        cells.get(False),
        cells.get(True),
        calls,
    )


def _ranges(
    job: Job, collective: Collective, space: Views, total: int, in_place: bool
) -> list[Views]:
    """Return the arrays that successive calls send and receive."""
    rank, size = job.comm.rank, job.comm.size
    first, second = space
    starts = range(0, first.size - total + 1, total)

    def views(start: int) -> Views:
        pair: tuple[Buffer, Buffer] = first[start : start + total], second[start : start + total]
        return collective.views(*pair, in_place, rank, size)

    return [views(start) for start in islice(starts, ITERATIONS)]


def _time(job: Job, collective: Collective, views: list[Views], calls: int) -> float:
    """Return the seconds of all calls on this rank; collective, waits for the calls."""
    for each in views:
        for buffer in each:
            buffer.fill(0)  # sums of sums must not overflow
    collective.launch(job.comm, *views[0]).wait()
    job.barrier()
    gc.disable()

    def work() -> None:
        for send, receive in islice(cycle(views), calls):
            collective.launch(job.comm, send, receive).wait()

    seconds = job.memory.timed(work)
    gc.enable()
    return seconds


def _check(job: Job, collective: Collective, views: Views) -> int:
    """Return the count of wrong elements in one call's result on this rank; collective."""
    send, receive = views
    receive.fill(np.nan)
    collective.fill(job, send)
    collective.launch(job.comm, send, receive).wait()
    job.memory.synchronize()
    return collective.wrong(job, receive)


def _as_json(
    job: Job, collective: Collective, rows: list[Row], devices: list[str]
) -> dict[str, Any]:
    """Return the table as JSON with nccl-tests' names."""
    bad = nccl_tests.wrong(rows)
    return {
        "name": collective.name,
        "backend": backend(job),
        "devices": devices,
        "results": [nccl_tests.as_json(row, collective.name) for row in rows],
        "out_of_bounds": {"count": bad, "okay": str(bad == 0).lower()},
        "average_bus_bandwidth": {"bandwidth": nccl_tests.average(rows), "okay": "unchecked"},
    }
