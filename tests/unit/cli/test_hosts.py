"""Hosts in the forms that users write, and the options of each mpirun for them."""

from __future__ import annotations

import pytest

from ncclkv.cli import hosts
from ncclkv.cli.mpi import Mpirun
from ncclkv.errors import LaunchError

MPICH = Mpirun("/mpich/mpirun", "HYDRA build details:\n    Version: 5.0.2")
OPEN_MPI = Mpirun("/ompi/mpirun", "mpirun (Open MPI) 5.0.11")
OPEN_MPI_4 = Mpirun("/ompi/mpirun", "mpirun (Open MPI) 4.1.4")
INTEL = Mpirun("/impi/mpirun", "Intel(R) MPI Library for Linux* OS, Version 2021.13")
SLOTS = {"a": 4, "b": 2}


@pytest.fixture(autouse=True)
def no_hosts_in_the_environment(monkeypatch):
    for name in hosts._HOST_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:4,b:4", {"a": 4, "b": 4}),
        ("a, b", {"a": None, "b": None}),
        ("10.0.0.1:2,node-2.example:3", {"10.0.0.1": 2, "node-2.example": 3}),
        ("a:1,a:2", {"a": 3}),
    ],
)
def test_hosts_in_a_list(text, found):
    assert hosts.parse(text) == found


@pytest.mark.parametrize("text", ["", "a,,b", "a:0", "a:", "a:x", "a:²", "a b", "-x:2", ":4"])
def test_hosts_in_a_wrong_list_are_refused(text):
    with pytest.raises(LaunchError, match=r"which is no host; give NAME or NAME:RANKS"):
        hosts.parse(text)


def test_a_file_in_the_format_of_either_mpi(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two racks\nnode1:4\nnode2 slots=2  # small\n\nnode3\nnode4 slots = 8\n")
    assert hosts.read(path) == {"node1": 4, "node2": 2, "node3": None, "node4": 8}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# none\n", "names no host; give a line NAME slots=RANKS for each"),
        ("a\nb max_slots=3\n", r"line 2 of .*hosts has 'b max_slots=3', which is no host"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_wrong_hostfile_is_refused(tmp_path, text, said):
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError, match=said):
        hosts.read(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("given", "ranks", "placed"),
    [
        ({"a": 4, "b": 2}, None, (6, {"a": 4, "b": 2})),
        ({"a": 4, "b": 2}, 5, (5, {"a": 4, "b": 2})),
        ({"a": None, "b": None}, 4, (4, {"a": 2, "b": 2})),
        ({"a": None, "b": None}, 3, (3, {"a": 2, "b": 2})),
        ({"a": None, "b": None}, None, (2, {"a": 1, "b": 1})),
        ({"a": None, "b": 3}, None, (4, {"a": 1, "b": 3})),
    ],
)
def test_ranks_are_distributed_over_slots(given, ranks, placed):
    assert hosts.place_ranks(given, ranks) == placed


def test_more_ranks_than_slots_are_refused():
    with pytest.raises(LaunchError, match="-n 7 is more than the hosts take, 6 ranks"):
        hosts.place_ranks({"a": 4, "b": 2}, 7)


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
    assert hosts.host_variable() == variable
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
