"""Number of ranks by the variables of batch systems, and by those of the user."""

from __future__ import annotations

import os

import pytest

from ncclkv import env
from ncclkv.cli import allocation, main, mpirun_search
from ncclkv.errors import LaunchError

SLURM = {"SLURM_JOB_ID": "7"}


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch):
    prefixes = ("SLURM_", "PBS_", "LSB_", "FLUX_", "PMI", "OMPI_", "MV2_")
    own = {*allocation._HOST_VARIABLES, *allocation._COUNTS}
    for name in [*os.environ]:
        if name in own or name.startswith(prefixes):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "ranks", "source"),
    [
        ({**SLURM, "SLURM_NTASKS": "4"}, 4, "SLURM_NTASKS=4"),
        ({**SLURM, "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "8"}, 4, "SLURM_NTASKS=4"),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "4(x2),3"}, 11, "SLURM_TASKS_PER_NODE=4(x2),3"),
        ({"LSB_DJOB_NUMPROC": "6", "LSB_HOSTS": "a a"}, 6, "LSB_DJOB_NUMPROC=6"),
        ({"NSLOTS": "3", "PE_HOSTFILE": "/x"}, 3, "NSLOTS=3"),
        ({**SLURM, "SLURM_NTASKS": "1"}, 1, "SLURM_NTASKS=1"),
    ],
)
def test_ranks_of_a_batch_system(monkeypatch, variables, ranks, source):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert allocation.allocated() == (ranks, source)


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "HYDRA_HOST_FILE"])
def test_ranks_of_a_file_with_repeated_hosts(monkeypatch, tmp_path, variable):
    path = tmp_path / "nodes"
    path.write_text("n1\nn1\nn2\nn2\n")
    monkeypatch.setenv(variable, str(path))
    found = allocation.allocated()
    assert found is not None
    assert found.ranks == 4
    assert found.source.endswith(f"{variable}={path}")
    path.unlink()
    with pytest.raises(LaunchError, match=rf"{variable}.*cannot be read"):
        allocation.allocated()


def test_a_file_of_the_user_goes_before_the_batch_system(monkeypatch, tmp_path):
    path = tmp_path / "nodes"
    path.write_text("n1:2\n")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("HYDRA_HOST_FILE", str(path))
    assert allocation.allocated() == (2, f"HYDRA_HOST_FILE={path}")


def test_the_number_and_its_source_are_printed(monkeypatch, capsys):
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert main(["run", "--dry-run", "--", "true"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "ncclkv run: 1 rank, from SLURM_NTASKS=1\n"
    assert shown.out.endswith(" true\n")
    assert main(["run", "-n", "1", "--dry-run", "--", "true"]) == 0
    assert capsys.readouterr().err == "", "the user's own number needs no line"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hosts", "a:2,b:2"], ""),
        (["--hosts", "a,b", "-n", "4"], ""),
        (["--hosts", "a,b"], "ncclkv run: 2 ranks, from --hosts a,b\n"),
        (["--hostfile", "nodes"], "ncclkv run: 3 ranks, from --hostfile nodes\n"),
    ],
)
def test_hosts_without_numbers_on_the_command_line_are_counted_aloud(
    monkeypatch, capsys, tmp_path, options, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes").write_text("a slots=2\nb\n")
    found = mpirun_search.Mpirun("mpirun", "HYDRA build details:")
    monkeypatch.setattr(mpirun_search, "find_mpirun", lambda command: found)
    assert main(["run", *options, "--dry-run", "--", "true"]) == 0
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "and there is no allocation"),
        (SLURM, "nor by the allocation of SLURM_JOB_ID"),
        ({"COBALT_NODEFILE": "/x"}, "nor by the allocation of COBALT_NODEFILE"),
    ],
)
def test_a_number_that_nobody_gives_is_asked_for(monkeypatch, capsys, variables, why):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert main(["run", "--dry-run", "--", "echo", "a b"]) == 2
    assert capsys.readouterr().err == (
        f"ncclkv: the number of ranks is not given, {why}; give it: ncclkv run -n 4 -- echo 'a b'\n"
    )


def test_several_copies_of_the_runner_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setattr(env, "launched_size", lambda: 4)
    with pytest.raises(LaunchError, match="started 4 copies of ncclkv run, .*start it once"):
        allocation.allocated()
