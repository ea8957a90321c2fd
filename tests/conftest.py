"""Settings of all tests: each has a time limit."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ncclkv import env
from tests.harness import layers
from tests.harness.frozen import Frozen
from tests.harness.limit import limits_of
from tests.nccl import gpu


def pytest_configure(config: pytest.Config) -> None:
    limits_of(config)
    config.pluginmanager.register(Frozen(), "ncclkv-frozen")
    _separate_folders()


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


def _separate_folders() -> None:
    """Give each rank a parent of `tmp_path` of its own: pytest removes old folders in it."""
    rank = env.launched_rank()
    if rank is not None:
        parent = Path(tempfile.gettempdir(), f"pytest-of-{os.getuid()}-rank-{rank}")
        parent.mkdir(exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(parent)
