"""Autotune: the size of buckets, chosen by timing collectives of several sizes.

The time of a size is that of the slowest rank, equal on all ranks.  So all ranks measure the same
sizes, fit the same model (`ncclkv.table.cost`), and choose the same size.  Times decide nothing
else.
"""

from __future__ import annotations

import numpy as np

from ncclkv import concurrency
from ncclkv.comm.base import Communicator
from ncclkv.engine.placement import Placement
from ncclkv.table.cost import AUTO, DEFAULT_BUCKET_BYTES, CostModel, Sizing, fit

_GROWTH = 4
_SIZES = tuple(64 * 1024 * _GROWTH**power for power in range(6))
_LEAST_SIZES = 2

_ROUNDS = 5
"""Count of collectives timed at each size, after a warm-up collective."""

_SECONDS = 1.0
"""Time limit of all timed collectives; the first collective of a communicator may exceed it."""


def sizing(comm: Communicator, placement: Placement, bucket_bytes: int | str) -> Sizing:
    """Return the given size, or choose a size by measurement; collective if it measures."""
    if bucket_bytes != AUTO:
        return Sizing(int(bucket_bytes))
    cost = None if comm.size == 1 else measured(comm, placement)
    return Sizing(DEFAULT_BUCKET_BYTES if cost is None else cost.bucket_bytes(), cost)


def measured(comm: Communicator, placement: Placement) -> CostModel | None:
    """Return a model of the time of collectives, equal on every rank; collective.

    The measurement takes a second at most.  Its 64 MiB a rank are freed.

    Parameters
    ----------
    comm : Communicator
        A communicator of two ranks or more.
    placement : Placement
        The destination of the sums.
    """
    from statistics import median  # slow to import, and seldom needed

    trial = _Trial(comm, placement)
    points: list[tuple[int, float]] = []
    spent = 0.0
    for nbytes in _SIZES:
        if len(points) >= _LEAST_SIZES:
            expected = _GROWTH * points[-1][1] * (_ROUNDS + 1)
            if spent + expected > _SECONDS:
                break
        # All ranks use the slowest rank's time: they must time the same count of collectives.
        own = median([trial.seconds(nbytes) for _ in range(_ROUNDS + 1)][1:])
        slowest = max(comm.control.allgather(own, f"measuring {nbytes} bytes"))
        points.append((nbytes, slowest))
        spent += slowest * (_ROUNDS + 1)
    return fit(points)


class _Trial:
    """Timed collectives on memory of the same kind as that of buckets."""

    def __init__(self, comm: Communicator, placement: Placement) -> None:
        self._comm = comm
        self._placement = placement
        self._space = comm.allocate(_SIZES[-1])
        comm.kernels.fill(self._space, 0)  # else the first collective would time page faults
        self._next = 0

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of one collective on memory that no cache holds."""
        if self._next + nbytes > self._space.size:
            self._next = 0
        buffer = self._space[self._next : self._next + nbytes].view(np.float32)
        self._next += nbytes
        start = concurrency.perf_counter()
        collective = self._comm.reduction(
            buffer,
            buffer,
            "sum",
            to=self._placement.to(buffer.size),
            sharded_update=self._placement.shares_weights,
        )
        collective.label = f"measuring {nbytes} bytes"
        collective.launch().wait()
        self._comm.synchronize()
        return concurrency.perf_counter() - start
