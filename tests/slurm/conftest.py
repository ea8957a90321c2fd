"""Settings of the tests under Slurm: a cluster of two nodes, which are machines of namespaces.

All tests use one cluster.  Without Slurm, root or namespaces the tests are skipped, and the last
line of the run says why.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm import cluster as slurm
from tests.slurm.cluster import Cluster

LACKING = slurm.missing()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LACKING:
        terminalreporter.write_line(f"no job ran under Slurm: {LACKING}")


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Cluster]:
    """Return a cluster of node1 and node2, with four slots each."""
    if LACKING:
        pytest.skip(f"no cluster of Slurm can be made here: {LACKING}")
    with slurm.cluster(2) as made:
        yield made


@pytest.fixture
def cluster(two_nodes: Cluster) -> Iterator[Cluster]:
    """Return the cluster; fail if a job of the test leaves a process on any node."""
    yield two_nodes
    two_nodes.nothing_left()
