"""Threads that a block starts stay on one core; threads started later do not."""

from __future__ import annotations

import os
import threading

from tests.harness.one_core import one_core


def cores_of_a_new_thread() -> set[int]:
    """Return the cores on which a new thread may run."""
    cores: set[int] = set()
    thread = threading.Thread(target=lambda: cores.update(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    return cores


def test_threads_of_the_block_have_one_core() -> None:
    before = os.sched_getaffinity(0)
    with one_core():
        cores = cores_of_a_new_thread()
        assert cores == os.sched_getaffinity(0)
        assert len(cores) == 1
        assert cores <= before
    assert cores_of_a_new_thread() == os.sched_getaffinity(0) == before
