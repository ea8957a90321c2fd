"""One core for threads that take turns: ranks of one process, of which Python runs one at a time.

On several cores Python's lock, free for a moment, goes to a thread on another core, and comes back
later.  Three ranks then take a third more CPU time.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_core_of_this_thread = ctypes.CDLL(None).sched_getcpu


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and the threads that the block starts, on the core of this thread.

    The system has chosen the core at that moment, so busy processes are on different cores.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {_core_of_this_thread()})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    """Run each test of a folder on one core: its ``conftest.py`` imports this fixture."""
    with one_core():
        yield
