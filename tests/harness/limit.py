"""Time limit of each test, which also ends a test that is stuck inside MPI or another C library.

A process that exceeds its limit prints its stacks on standard error and exits with code 1; a
launcher then ends the other ranks.  An exception would not interrupt C code.
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
"""Seconds for a test without a limit of its own, and for the collection of all tests."""

LAST_WORDS = 2.0
"""Seconds between a process's report and its end, so that other ranks report and mpirun prints."""


class Limits:
    """Pytest plugin that ends tests at their limits.

    Attributes
    ----------
    name : str
        Name of this process in its output, such as "rank 2 of 4".
    waiting : callable
        Returns a text of the ranks that this process waits for; empty while it waits for none.
    """

    def __init__(self) -> None:
        self.name = ""
        self.waiting: Callable[[], str] = str
        # Standard error outside the tests, where pytest runs not capture it.
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
        """Write whole lines to standard error, each with this process's name in front."""
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
        # For C code that holds Python's lock, so that the timer's thread cannot run.
        faulthandler.dump_traceback_later(seconds + 2 * LAST_WORDS, exit=True, file=self._stderr)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            timer.cancel()

    def _expire(self, what: str, seconds: float) -> None:
        """Print the process's stacks, and end it."""
        doing = self.waiting() or f"still busy:\n{stacks()}"
        self.say(f"{what}: past the limit of {seconds:g} s, and {doing}")
        time.sleep(LAST_WORDS)
        os._exit(1)


def limits_of(config: pytest.Config) -> Limits:
    """Return the run's one plugin, which the first conftest that needs it registers."""
    name = "ncclkv-limits"
    if not config.pluginmanager.has_plugin(name):
        config.pluginmanager.register(Limits(), name)
    return config.pluginmanager.get_plugin(name)


def stacks() -> str:
    """Return the stacks of the other threads, without pytest's own frames."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().split("\n\n")
    others = "\n\n".join(text for text in threads if not text.startswith("Current thread"))
    inside = ("/_pytest/", "/pluggy/", "/pytest/", "<frozen runpy>")
    return "\n".join(line for line in others.splitlines() if not any(s in line for s in inside))
