"""Ranks on cores, while calls of microseconds are measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_core_a_rank(local_rank: int) -> Iterator[None]:
    """Keep the calling thread on one core; the ranks of a node are spread over its cores.

    The system may leave three of four ranks on one of two cores for a whole measurement.  Calls of
    microseconds then take half as long again.

    Parameters
    ----------
    local_rank : int
        Number of this rank on its node.
    """
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[local_rank % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
