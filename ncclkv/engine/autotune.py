"""How large buckets are to be, when that is to be measured."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import EVERYONE, To
from ncclkv.table.cost import AUTO, DEFAULT_BUCKET_BYTES, CostModel, Sizing, fit

_GROWTH = 4
_SIZES = tuple(64 * 1024 * _GROWTH**number for number in range(6))
_LEAST_SIZES = 2

_ROUNDS = 5
"""Collectives that are timed at each size, after one that is not."""

_SECONDS = 1.0
"""That all of them may take together; the first one of a communicator may take more."""


def sizing(comm: Communicator, to: To, bucket_bytes: int | str) -> Sizing:
    """The size that was asked for, or one that all ranks choose by measuring; then collective."""
    if bucket_bytes != AUTO:
        return Sizing(int(bucket_bytes))
    cost = None if comm.size == 1 else measured(comm, to)
    return Sizing(DEFAULT_BUCKET_BYTES if cost is None else cost.bucket_bytes(), cost)


def measured(comm: Communicator, to: To) -> CostModel | None:
    """What the collectives of a store take, the same on every rank; collective.

    It takes about a second at most, and 64 MiB a rank, which it gives back.

    Parameters
    ----------
    comm : Communicator
        Of two ranks or more.
    to : To
        Destination of the sums.
    """
    trial = _Trial(comm, to)
    points: list[tuple[int, float]] = []
    spent = 0.0
    for nbytes in _SIZES:
        if len(points) >= _LEAST_SIZES:
            expected = _GROWTH * points[-1][1] * (_ROUNDS + 1)
            if spent + expected > _SECONDS:
                break
        # The slowest rank's, and known to all: whatever follows from it, they do alike.
        own = trial.median_seconds(nbytes)
        slowest = max(comm.control.allgather(own, f"measuring {nbytes} bytes"))
        points.append((nbytes, slowest))
        spent += slowest * (_ROUNDS + 1)
    return fit(points)


class _Trial:
    """Collectives to be timed, in memory such as buckets are in."""

    def __init__(self, comm: Communicator, to: To) -> None:
        self._comm = comm
        self._to = to
        self._space = comm.allocate(_SIZES[-1])
        comm.kernels.fill(self._space, 0)  # a page is there once it is written to
        self._next = 0

    def median_seconds(self, nbytes: int) -> float:
        """What this rank takes for a collective of that size."""
        times = [self._seconds(nbytes) for _ in range(_ROUNDS + 1)]
        return median(times[1:])

    def _seconds(self, nbytes: int) -> float:
        """What this rank takes for one, of bytes that no cache has from the one before."""
        if self._next + nbytes > self._space.size:
            self._next = 0
        buffer = self._space[self._next : self._next + nbytes].view(np.float32)
        self._next += nbytes
        start = perf_counter()
        # Where ranks of a node have weights in common, each writes a part: so they do here.
        sharded_update = self._to == EVERYONE
        collective = self._comm.reduction(
            buffer, buffer, "sum", to=self._to, sharded_update=sharded_update
        )
        collective.label = f"measuring {nbytes} bytes"
        collective.launch().wait()
        self._comm.synchronize()
        return perf_counter() - start
