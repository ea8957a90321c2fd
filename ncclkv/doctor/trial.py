"""Trial: the program of a child in the place of its rank, which joins the others and sums.

The child tells its parent of each step, so that the parent names the step in which it ended.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ncclkv
from ncclkv import concurrency
from ncclkv.comm.base import Communicator
from ncclkv.comm.host.start import world
from ncclkv.comm.nccl import start as gpus
from ncclkv.comm.nccl.discovery import launch_problem, shared_gpus
from ncclkv.doctor.probe import end_with_parent, tell
from ncclkv.errors import KVStoreError
from ncclkv.system.memory_left import memory_left

_NBYTES = 64 << 20
"""Largest array of which the speed is measured; less where memory is small."""

_SHORT, _LONG = 1_000, 300_000
_DTYPES = ("float32", "float64", "int64")

_SECONDS = 0.5
_LONGEST = 0.2
"""Seconds of each measurement, and of one allreduce in it."""

_FIRST = 1 << 20
"""Elements of the first allreduce, whose time decides on the size of the measured ones."""

_GPU_SECONDS = 60.0
"""Limit of waits on GPUs, for which NCCL connects and kernels are compiled."""

_FEWEST, _MOST = 3, 25
_CLOCK_LOOKS = 5


def run() -> None:
    """Join the other ranks, tell the parent of each step, and end this process; collective."""
    end_with_parent()
    given = json.loads(sys.stdin.read())
    try:
        _steps(given["report"], given["timeout"], test=given["test"])
    except KVStoreError as error:
        tell("error", str(error))
        # Without MPI's end, which would wait for ranks that may never come.
        sys.stderr.flush()
        os._exit(0)
    tell("step", "ending MPI")


def _steps(report: Any, timeout: float, *, test: bool) -> None:
    tell("step", "starting MPI")
    comm = world(timeout)
    tell("joined", {"size": comm.size, "library": comm.name})
    tell("step", "exchanging the ranks' rows")
    reports = comm.control.allgather(report, "doctor's rows")
    if comm.rank == 0:
        tell("reports", reports)
    sharing = getattr(comm, "sharing", None)
    if sharing is not None:
        tell("sharing", [sharing.method, sharing.action, list(sharing.reasons)])
    tell("clocks", _clocks(comm))
    if test:
        comm = _test(comm)
    comm.close()


def _test(comm: Communicator) -> Communicator:
    """Sum and measure, on GPUs too if all ranks have them; collective; return the communicator."""
    tell("step", "summing in host memory")
    tell("sums", _wrong(comm, "dist_sync"))
    tell("step", "measuring host memory")
    tell("speed", _speed(comm))
    tell("step", "looking for the ranks' GPUs")
    infos = gpus.survey(comm)
    problem = launch_problem(infos)
    tell("on gpus", problem or "")
    tell("a gpu", max(map(len, shared_gpus(infos).values()), default=1))
    tell("gpus", max(info.devices for info in infos))
    if problem is None:
        tell("step", "starting NCCL")
        hosts, comm = comm, gpus.launch(comm.duplicate(_GPU_SECONDS), infos)
        hosts.close()
        tell("step", "summing in the GPUs' memory")
        tell("gpu sums", _wrong(comm, "nccl"))
        tell("step", "measuring the GPUs")
        tell("gpu speed", _speed(comm))
    return comm


def _clocks(comm: Communicator) -> float:
    """Return the seconds between the ranks' clocks, and a message's time; collective."""
    found = []
    for _ in range(_CLOCK_LOOKS):
        comm.barrier().wait()
        times = comm.control.allgather(concurrency.wall_time(), "clocks")
        found.append(max(times) - min(times))
    return float(min(comm.control.allgather(min(found), "clocks")))


def _wrong(comm: Communicator, name: str) -> list[str]:
    """Push known values; return the dtypes whose sums are wrong; collective."""
    wrong = []
    with ncclkv.create(name, comm=comm) as kv:
        for dtype in _DTYPES:
            for count in (_SHORT, _LONG):
                key = f"{dtype} {count}"
                values = np.arange(count) % 1000
                expected = (comm.size * values + sum(range(comm.size))).astype(dtype)
                pulled = np.empty(count, dtype)
                kv.init(key, np.zeros(count, dtype))
                kv.push(key, (values + comm.rank).astype(dtype))
                kv.pull(key, out=pulled)
                wrong += [key] * (not np.array_equal(pulled, expected))
    found = comm.control.allgather(wrong, "doctor's sums")
    return sorted({key for each in found for key in each})


def _speed(comm: Communicator) -> dict[str, float]:
    """Return an array's bytes, and its GB/s by allreduce and by copies; collective.

    The copy is the machine's limit: every rank copies an array of its own at the same time.
    """
    left = memory_left()
    own = _NBYTES if left is None else min(_NBYTES, left.nbytes // (8 * comm.local_size))
    most = min(comm.control.allgather(own, "doctor's memory")) // 4096 * 4096
    send, receive = (comm.allocate(most).view(np.float32) for _ in range(2))
    send[...] = comm.rank + 1
    receive[...] = 0

    def reduce(count: int) -> None:
        comm.allreduce(send[:count], receive[:count]).wait()

    def copy(count: int) -> None:
        receive[:count] = send[:count]

    first = min(_FIRST, send.size)
    trial = _seconds(comm, lambda: reduce(first), receive, 2)
    # On a slow network the whole array would take longer than all other rows.
    count = min(send.size, max(first, int(first * _LONGEST / trial)))
    reduced = _seconds(comm, lambda: reduce(count), receive, _repeats(trial * count / first))
    total = comm.size * (comm.size + 1) // 2
    right = all(comm.control.allgather(bool((receive[:count] == total).all()), "doctor's sums"))
    copied = _seconds(comm, lambda: copy(count), receive, _repeats(trial * count / first))
    nbytes = 4 * count
    speeds = {"allreduce": nbytes / reduced / 1e9, "copy": nbytes / copied / 1e9}
    return {"nbytes": nbytes, "right": right, **speeds}


def _repeats(seconds: float) -> int:
    """Return how often an action is measured that takes so long."""
    return min(max(int(_SECONDS / seconds), _FEWEST), _MOST)


def _seconds(comm: Communicator, act: Callable[[], None], written: Any, repeats: int) -> float:
    """Return the median time of an action, on the last rank each time; collective."""

    def measured() -> float:
        comm.barrier().wait()
        begin = concurrency.perf_counter()
        act()
        float(written[0])  # a GPU's work is then complete
        return concurrency.perf_counter() - begin

    measured()  # pages are written for the first time, and kernels are loaded
    times = comm.control.allgather([measured() for _ in range(repeats)], "doctor's speed")
    return float(statistics.median(map(max, zip(*times, strict=True))))
