"""Record of the tests that a pytest process has begun; another process continues after a lost test.

A test that exceeds its limit, or crashes, ends its whole process: an exception runs not interrupt C
code.  `tests.harness.rounds` then starts pytest again, without the tests in the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Record:
    """Contents of a record file.

    Attributes
    ----------
    begun : tuple of str
        Node ids of tests, in the order in which they began.
    lost : str
        The test that the process was in, or had just left, when it ended; empty when it ended in
        order, or before any test.
    """

    begun: tuple[str, ...]
    lost: str

    @classmethod
    def read(cls, path: Path) -> Record:
        """Parse a file; a missing file is the record of a process that began no test."""
        lines = path.read_text().splitlines() if path.exists() else []
        begun = tuple(line.removeprefix("begin ") for line in lines if line.startswith("begin "))
        ended_in_order = "finished" in lines
        return cls(begun, "" if ended_in_order or not begun else begun[-1])


class Progress:
    """Pytest plugin that writes a record, and leaves out the tests in earlier records."""

    def __init__(self, path: Path, done: frozenset[str], writes: bool) -> None:
        self._path = path
        self._done = done
        self._writes = writes

    def _write(self, line: str) -> None:
        """Append a line by one write."""
        if self._writes:
            with self._path.open("a") as file:
                file.write(f"{line}\n")

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = [item for item in items if item.nodeid in self._done]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in self._done]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(f"begin {nodeid}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._write("finished")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FILE", help="write the tests that begin to FILE")
    parser.addoption("--done", metavar="FILE", help="leave out the tests that FILE names")


# After the plugin that sets the ranks' names.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("record")
    if path is None:
        return
    done = config.getoption("done")
    names = frozenset(Path(done).read_text().splitlines()) if done else frozenset()
    # One rank writes: the rank whose reports are printed.
    writes = not hasattr(config, "workerinput")
    config.pluginmanager.register(Progress(Path(path), names, writes), "ncclkv-progress")
