"""``ncclkv run`` before it starts anything, and between its starts."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ncclkv.cli import main, mpi, run
from ncclkv.cli.mpi import Library
from ncclkv.cli.report import Outcome, Rank
from ncclkv.errors import LaunchError

MPICH = "HYDRA build details:\\n    Version: 5.0.2"
OPEN_MPI = "mpirun (Open MPI) 5.0.11"


def mpirun(path: Path, version: str) -> Path:
    """Write a stand-in that answers --version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nprintf "{version}\\n"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A prefix with an MPI library, a Python, and a folder that is PATH."""
    for name in ("prefix/lib", "python", "path"):
        (tmp_path / name).mkdir(parents=True)
    python = mpirun(tmp_path / "python" / "python3", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setattr(mpi, "python_of", lambda command: str(python))
    return tmp_path


def loads(monkeypatch, name: str, path: Path | None) -> None:
    """Let mpi4py load this MPI."""
    monkeypatch.setattr(mpi, "ask", lambda python: Library(name, path))


def test_mpirun_of_the_library_goes_before_others(places, monkeypatch):
    loads(monkeypatch, "MPICH Version: 5.0.2", places / "prefix/lib/libmpi.so.12")
    mpirun(places / "path/mpirun", MPICH)
    mpirun(places / "python/mpirun", MPICH)
    own = mpirun(places / "prefix/bin/mpirun", MPICH)
    assert mpi.find(["python"]) == (str(own), {})


def test_mpirun_of_another_mpi_is_passed_by(places, monkeypatch):
    loads(monkeypatch, "Open MPI v5.0.3, package", places / "prefix/lib/libmpi.so.40")
    mpirun(places / "prefix/bin/mpirun", MPICH)
    own = mpirun(places / "path/mpirun", OPEN_MPI)
    found, settings = mpi.find(["python"])
    assert found == str(own)
    assert settings["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert settings["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"


def test_no_mpirun_that_fits(places, monkeypatch):
    loads(monkeypatch, "Open MPI v5.0.3, package", None)
    other = mpirun(places / "path/mpirun", MPICH)
    with pytest.raises(LaunchError) as error:
        mpi.find(["python"])
    assert "there is no mpirun of Open MPI v5.0.3, package" in str(error.value)
    assert f"there is {other} (HYDRA build details:), which is of another MPI" in str(error.value)
    assert "-m pip install 'ncclkv[mpi]'" in str(error.value)


def test_no_mpi4py(tmp_path):
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'mpi4py'\" >&2\nexit 1\n"
    )
    python.chmod(0o755)
    with pytest.raises(
        LaunchError, match=r"cannot load MPI.*No module named 'mpi4py'.*pip install"
    ):
        mpi.find([str(python), "train.py"])


def test_newest_checkpoint_is_complete(tmp_path):
    assert run.newest(None) is None
    assert run.newest(tmp_path / "none") is None
    for name in ("step-000000030-save-000009", "step-000000010-save-000010"):
        (tmp_path / name).mkdir()
    for name in (".saving-step-000000040-save-000011", "step-000000050-save-000012-states", "x"):
        (tmp_path / name).mkdir()
    # The program may have gone back to an earlier step.
    assert run.newest(tmp_path) == "step-000000010-save-000010"


@pytest.mark.parametrize(
    ("code", "early", "left", "again"),
    [(1, 0, 1, True), (1, 1, 1, True), (1, 2, 1, False), (2, 0, 1, False), (1, 0, 0, False)],
)
def test_whether_to_start_again(code, early, left, again):
    ended = Outcome({0: Rank(0, "node1", 1, code, 1.0)}, 1.0, code, [])
    assert (run.why_not_again(ended, early, left) is None) == again


def test_where_the_next_start_begins(tmp_path):
    options = argparse.Namespace(checkpoint=None)
    assert run.begin_at(options) == "from the beginning: there is no --checkpoint"
    options.checkpoint = tmp_path
    assert "no complete checkpoint in" in run.begin_at(options)


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run", "-n", "four", "--", "true"]])
def test_a_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: ncclkv" in capsys.readouterr().err
