"""Settings of all tests: each has a time limit."""

from __future__ import annotations

import pytest

from tests.harness import layers
from tests.harness.frozen import Frozen
from tests.harness.limit import limits_of
from tests.nccl import gpu


def pytest_configure(config: pytest.Config) -> None:
    limits_of(config)
    config.pluginmanager.register(Frozen(), "ncclkv-frozen")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus != 0 or not gpu.required() or not reporter:
        return
    if reporter.stats.get("skipped"):
        reporter.write_line("NCCLKV_REQUIRE_GPU=1: a test that was skipped is a failure")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = layers.summary(terminalreporter.stats)
    if line:
        terminalreporter.write_line(line)
