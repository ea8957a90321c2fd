"""Settings of the tests of images: the root of a release of Debian, for all tests.

Without root, debootstrap or a network the tests are skipped, and the last line of the run says why.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.image import build

REASONS: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in REASONS:
        terminalreporter.write_line(f"no image was built: {reason}")


@pytest.fixture(scope="session")
def folder():
    """Return a folder for roots, of some gigabytes: pytest's own would stay after the tests."""
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def base(folder):
    """Make the root of the release that the Dockerfile and Apptainer's file name."""
    texts = [(ROOT / "launch" / name).read_text() for name in ("Dockerfile", "apptainer.def")]
    (suite,) = set(re.findall(r"^(?:FROM|From:) debian:(\w+)-slim", "\n".join(texts), re.MULTILINE))
    made = folder / "base"
    if reason := build.missing() or build.bootstrap(made, suite):
        REASONS.append(reason)
        pytest.skip(reason)
    return made
