"""Settings of the tests on hosts that share nothing: networks of machines, made of namespaces.

Each layout of hosts and ranks is one network, for all tests that use it.  Without root, or without
the tools, the tests are skipped, and the last line of the run says why.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.extent import some_or_all
from tests.hosts.lab.jobs import Jobs
from tests.hosts.lab.network import Network, missing

LACKING = missing()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LACKING:
        terminalreporter.write_line(f"no job ran on several hosts: {LACKING}")


def jobs(hosts: int, ranks: int) -> Iterator[Jobs]:
    """Yield a network with jobs of `ranks` ranks on each of `hosts` hosts."""
    if LACKING:
        pytest.skip(f"no hosts can be made of namespaces here: {LACKING}")
    with Network(hosts) as network:
        yield Jobs(network, ranks)


@pytest.fixture(scope="session")
def two_by_two() -> Iterator[Jobs]:
    """Return two hosts with two ranks each."""
    yield from jobs(2, 2)


@pytest.fixture(scope="session")
def three_by_one() -> Iterator[Jobs]:
    """Return three hosts with one rank each."""
    yield from jobs(3, 1)


def named(request: pytest.FixtureRequest) -> Jobs:
    """Return the layout that the fixture's parameter names."""
    names = {"2x2": "two_by_two", "3x1": "three_by_one"}
    found: Jobs = request.getfixturevalue(names[request.param])
    return found


@pytest.fixture(scope="session", params=some_or_all(["2x2"], ["2x2", "3x1"]))
def hosts(request: pytest.FixtureRequest) -> Jobs:
    """Return one of the layouts, or in a complete run each in turn."""
    return named(request)


@pytest.fixture(scope="session", params=["2x2", "3x1"])
def all_hosts(request: pytest.FixtureRequest) -> Jobs:
    """Return each of the layouts in turn."""
    return named(request)
