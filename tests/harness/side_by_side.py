"""Runs of the suite side by side, as many at once as the cores can serve.

A run takes as many shares of the machine as it has busy processes. Most runs wait more than they
compute, so a core has two shares. Each run has its own ``/dev/shm`` and temporary folder, apart
from the files of other runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Protocol, TypeVar

ALONE = 1000
"""Shares of a run beside which no other may be."""

_OWN_SHARED_MEMORY = (
    *("unshare", "--mount", "--", "sh", "-c"),
    'mount -t tmpfs tmpfs /dev/shm && exec "$@"',
    "sh",
)


class Weighed(Protocol):
    """A piece of work that takes shares of the machine."""

    @property
    def weight(self) -> int: ...


W = TypeVar("W", bound=Weighed)
R = TypeVar("R")


def shares() -> int:
    """Return the shares of this machine: two a core and one more, or none where runs would meet.

    Without root the runs have one ``/dev/shm``, where each would remove files of the others.
    """
    return 2 * len(os.sched_getaffinity(0)) + 1 if has_private_memory() else 0


@cache
def has_private_memory() -> bool:
    """Return whether a process can be given a ``/dev/shm`` of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = [*_OWN_SHARED_MEMORY, "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def private(command: Sequence[str]) -> list[str]:
    """Return the command with its own ``/dev/shm``, if possible."""
    return [*(_OWN_SHARED_MEMORY if has_private_memory() else ()), *command]


def side_by_side(
    works: Sequence[W],
    start: Callable[[W], R],
    ended: Callable[[W, R], None],
    stop: Callable[[], None],
    room: int,
) -> list[R]:
    """Do all works in threads, in their order as far as they fit, and return their results.

    Parameters
    ----------
    works : sequence
    start : callable
        Does a work and returns its result; called in a thread of its own.
    ended : callable
        Called with a work and its result in the caller's thread, in the order of the ends.
    stop : callable
        Ends the works that are being done, when this thread is interrupted.
    room : int
        Shares that works may take together; a heavier work is done when no other is.
    """
    with ThreadPoolExecutor(max(1, len(works))) as pool:
        try:
            return _do(pool, works, start, ended, room)
        except BaseException:
            stop()
            raise


def _do(
    pool: ThreadPoolExecutor,
    works: Sequence[W],
    start: Callable[[W], R],
    ended: Callable[[W, R], None],
    room: int,
) -> list[R]:
    waiting = list(range(len(works)))
    doing: dict[Future[R], int] = {}
    results: dict[int, R] = {}
    while waiting or doing:
        for index in list(waiting):
            taken = sum(works[each].weight for each in doing.values())
            if not doing or taken + works[index].weight <= room:
                waiting.remove(index)
                doing[pool.submit(start, works[index])] = index
        for future in wait(doing, return_when=FIRST_COMPLETED).done:
            index = doing.pop(future)
            results[index] = future.result()
            ended(works[index], results[index])
    return [results[index] for index in range(len(works))]
