"""Ranks on cores, while calls of microseconds are measured."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def one_core_a_rank(local_rank: int) -> Iterator[None]:
    """Keep this process on one core; the ranks of a node are spread over its cores.

    So are the threads that libraries have started, unless ranks are threads themselves.

    The system may leave three of four ranks on one of two cores for a whole measurement.  Calls of
    microseconds then take half as long again.

    Parameters
    ----------
    local_rank : int
        Index of this rank on its node.
    """
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    _keep({cores[local_rank % len(cores)]})
    try:
        yield
    finally:
        _keep(before)


def _keep(cores: set[int]) -> None:
    """Keep this thread on some cores, and all of the process if this is the main one."""
    is_main = threading.current_thread() is threading.main_thread()
    for thread in os.listdir("/proc/self/task") if is_main else ["0"]:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)
