"""Settings of all tests: each has a time limit."""

from __future__ import annotations

import pytest

from tests.harness import layers
from tests.harness.limit import limits_of


def pytest_configure(config: pytest.Config) -> None:
    limits_of(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = layers.summary(terminalreporter.stats)
    if line:
        terminalreporter.write_line(line)
