"""Options by which each mpirun is given hosts and variables."""

from __future__ import annotations

import pytest

from ncclkv.cli import allocation, hosts
from ncclkv.cli.mpirun_search import Mpirun
from ncclkv.errors import LaunchError

MPICH = Mpirun("/mpich/mpirun", "HYDRA build details:\n    Version: 5.0.2")
OPEN_MPI = Mpirun("/ompi/mpirun", "mpirun (Open MPI) 5.0.11")
OPEN_MPI_4 = Mpirun("/ompi/mpirun", "mpirun (Open MPI) 4.1.4")
INTEL = Mpirun("/impi/mpirun", "Intel(R) MPI Library for Linux* OS, Version 2021.13")
SLOTS = {"a": 4, "b": 2}


@pytest.fixture(autouse=True)
def no_hosts_in_the_environment(monkeypatch):
    for name in allocation._HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_options_of_each_mpirun():
    line = ["-n", "6"]
    assert hosts.launcher(MPICH, 6, SLOTS).line[1:] == [*line, "-hosts", "a:4,b:2", "-prepend-rank"]
    tagged = ["--output", "tag"]
    assert hosts.launcher(OPEN_MPI, 6, SLOTS).line[1:] == [*line, "--host", "a:4,b:2", *tagged]
    assert hosts.launcher(OPEN_MPI_4, 6, SLOTS).line[-1] == "--tag-output"
    with pytest.raises(LaunchError, match=r"/impi/mpirun is neither .* set its own variables"):
        hosts.launcher(INTEL, 6, SLOTS)
    assert hosts.launcher(INTEL, 6, {}).line[1:] == line


def test_one_machine_needs_no_host_options(monkeypatch):
    monkeypatch.setattr(hosts, "cores", lambda: 4)
    assert hosts.launcher(MPICH, 9, {}).line == ["/mpich/mpirun", "-n", "9"]
    few, many = hosts.launcher(OPEN_MPI, 4, {}), hosts.launcher(OPEN_MPI, 5, {})
    assert few.line == ["/ompi/mpirun", "-n", "4"]
    assert few.settings["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert (few.unless_set, few.with_environment({"NCCL_DEBUG": "INFO"})) == ({}, few.line)
    assert many.unless_set["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert not set(many.unless_set) & set(many.settings), "the user's own settings win"


@pytest.mark.parametrize(
    "variable",
    ["SLURM_JOB_ID", "PBS_NODEFILE", "HYDRA_HOST_FILE", "PRTE_MCA_prte_default_hostfile"],
)
def test_in_an_allocation_mpirun_finds_the_hosts(monkeypatch, variable):
    monkeypatch.setenv(variable, "7")
    monkeypatch.setattr(hosts, "cores", lambda: 1)
    assert allocation.host_variable() == variable
    assert hosts.launcher(MPICH, 9, {}).line[1:] == ["-n", "9", "-prepend-rank"]
    found = hosts.launcher(OPEN_MPI, 9, {})
    assert found.line[1:] == ["-n", "9", "--output", "tag"]
    assert found.unless_set == {}, "oversubscribed, all ranks would be on the first host"


def test_open_mpi_exports_the_variables_to_other_hosts():
    names = ("NCCLKV_TIMEOUT", "NCCL_DEBUG", "PATH", "PYTHONPATH", "DATA", "TMPDIR_OF_ALL")
    own = ("TMPDIR", "SSH_TTY", "OMPI_x", "PMIX_RANK", "SLURM_JOB_ID", "_", "BASH_FUNC_ml%%")
    found = hosts.launcher(OPEN_MPI, 6, SLOTS)
    line = found.with_environment(dict.fromkeys([*names, *own], "1"))
    passed = [each for each in line[len(found.line) :] if each != "-x"]
    assert passed == ["NCCLKV_RUN_SECRET", *sorted(names)]


def test_default_slots_are_the_cores_of_this_machine():
    assert hosts.cores() >= 1
