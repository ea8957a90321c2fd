"""A time limit for each test, which also ends one that is stuck inside MPI or another C library.

Past its limit a process prints where it is, on standard error, and ends with exit code 1; a
launcher then ends the other ranks.  An exception would not do: C code does not look for one.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest

from tests.harness.slow import stretched

DEFAULT = 60.0
"""Seconds for a test without a mark of its own, and for the collection of all tests."""

LAST_WORDS = 2.0
"""Seconds between what a process says and its end: others say theirs, mpirun passes it on."""


class Limits:
    """The plugin that holds tests to their limits.

    Attributes
    ----------
    name : str
        What this process calls itself in what it says, such as "rank 2 of 4".
    waiting : callable
        Whom this process waits for, in words; empty while it is busy itself.
    """

    def __init__(self) -> None:
        self.name = ""
        self.waiting: Callable[[], str] = str
        # Standard error as it is outside the tests, where pytest does not catch it.
        self._stderr = os.dup(2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with self._limit("the collection of tests", DEFAULT):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker("limit")
        seconds = float(mark.args[0]) if mark else DEFAULT
        with self._limit(item.nodeid, seconds):
            return (yield)

    def say(self, text: str) -> None:
        """Write whole lines to standard error, each beginning with this process's name."""
        prefix = f"{self.name}: " if self.name else ""
        lines = "".join(f"{prefix}{line}\n" for line in text.splitlines())
        # The first newline ends the line of dots that pytest may have begun.
        os.write(self._stderr, f"\n{lines}".encode())

    @contextmanager
    def _limit(self, what: str, limit: float) -> Iterator[None]:
        seconds = stretched(limit)
        timer = threading.Timer(seconds, self._expire, (what, seconds))
        timer.daemon = True
        timer.start()
        # For C code that keeps Python's lock, so that the timer's thread cannot run.
        faulthandler.dump_traceback_later(seconds + 2 * LAST_WORDS, exit=True, file=self._stderr)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            timer.cancel()

    def _expire(self, what: str, seconds: float) -> None:
        """Say what the process is doing, and end it."""
        doing = self.waiting() or f"still busy:\n{stacks()}"
        self.say(f"{what}: past the limit of {seconds:g} s, and {doing}")
        time.sleep(LAST_WORDS)
        os._exit(1)


def limits_of(config: pytest.Config) -> Limits:
    """The one plugin of the run; it is registered by the first conftest that asks."""
    name = "ncclkv-limits"
    if not config.pluginmanager.has_plugin(name):
        config.pluginmanager.register(Limits(), name)
    return config.pluginmanager.get_plugin(name)


def stacks() -> str:
    """Where the other threads are, without the steps inside pytest."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().split("\n\n")
    others = "\n\n".join(text for text in threads if not text.startswith("Current thread"))
    inside = ("/_pytest/", "/pluggy/", "/pytest/", "<frozen runpy>")
    return "\n".join(line for line in others.splitlines() if not any(s in line for s in inside))
