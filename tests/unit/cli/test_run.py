"""``ncclkv run`` before its first start, and between its starts."""

from __future__ import annotations

import argparse
import errno
import os
import re
from pathlib import Path

import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.cli import main, mpirun_search, run
from ncclkv.cli.mpirun_search import MpiLibrary
from ncclkv.cli.outcome import Outcome, Rank
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
    """Make a prefix with an MPI library, a Python, and a folder as PATH."""
    for name in ("prefix/lib", "python", "path"):
        (tmp_path / name).mkdir(parents=True)
    python = mpirun(tmp_path / "python" / "python3", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setattr(mpirun_search, "python_of", lambda command: str(python))
    return tmp_path


def loads(monkeypatch, name: str, path: Path | None) -> None:
    """Let mpi4py load this MPI."""
    monkeypatch.setattr(mpirun_search, "find_library", lambda python: MpiLibrary(name, path))


def test_mpirun_of_the_library_goes_before_others(places, monkeypatch):
    loads(monkeypatch, "MPICH Version: 5.0.2", places / "prefix/lib/libmpi.so.12")
    mpirun(places / "path/mpirun", MPICH)
    mpirun(places / "python/mpirun", MPICH)
    own = mpirun(places / "prefix/bin/mpirun", MPICH)
    assert mpirun_search.find_mpirun(["python"]).path == str(own)


def test_mpirun_of_another_mpi_is_ignored(places, monkeypatch):
    loads(monkeypatch, "Open MPI v5.0.3, package", places / "prefix/lib/libmpi.so.40")
    mpirun(places / "prefix/bin/mpirun", MPICH)
    own = mpirun(places / "path/mpirun", OPEN_MPI)
    found = mpirun_search.find_mpirun(["python"])
    assert found.path == str(own)
    assert found.is_open_mpi
    assert not found.is_hydra


def test_no_matching_mpirun_is_an_error(places, monkeypatch):
    loads(monkeypatch, "Open MPI v5.0.3, package", None)
    other = mpirun(places / "path/mpirun", MPICH)
    with pytest.raises(LaunchError) as error:
        mpirun_search.find_mpirun(["python"])
    assert "there is no mpirun of Open MPI v5.0.3, package" in str(error.value)
    assert f"there is {other} (HYDRA build details:), which is of another MPI" in str(error.value)
    assert "-m pip install 'ncclkv[mpi]'" in str(error.value)


def test_without_mpi4py_the_command_is_named(tmp_path):
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'mpi4py'\" >&2\nexit 1\n"
    )
    python.chmod(0o755)
    with pytest.raises(
        LaunchError, match=r"cannot load MPI.*No module named 'mpi4py'.*pip install"
    ):
        mpirun_search.find_mpirun([str(python), "train.py"])


def test_newest_checkpoint_is_complete(tmp_path):
    assert run.newest_checkpoint(None) is None
    assert run.newest_checkpoint(tmp_path / "none") is None
    for name in ("step-000000030-save-000009", "step-000000010-save-000010"):
        (tmp_path / name).mkdir()
    for name in (".saving-step-000000040-save-000011", "step-000000050-save-000012-states", "x"):
        (tmp_path / name).mkdir()
    # A newer save may hold an earlier step, after the program has gone back.
    assert run.newest_checkpoint(tmp_path) == "step-000000010-save-000010"


@pytest.mark.parametrize(
    ("code", "early", "left", "again"),
    [(1, 0, 1, True), (1, 1, 1, True), (1, 2, 1, False), (2, 0, 1, False), (1, 0, 0, False)],
)
def test_conditions_of_a_restart(code, early, left, again):
    ended = Outcome({0: Rank(0, "node1", 1, code, 1.0)}, 1.0, code, [])
    assert (run.reason_to_stop(ended, early, left) is None) == again


def test_the_next_start_loads_the_newest_checkpoint(tmp_path):
    options = argparse.Namespace(checkpoint=None)
    assert run.describe_checkpoint(options) == "from the beginning: there is no --checkpoint"
    options.checkpoint = tmp_path
    assert "no complete checkpoint in" in run.describe_checkpoint(options)


def test_without_arguments_the_commands_are_listed(capsys):
    assert main([]) == 0
    shown = capsys.readouterr()
    assert re.search(r"usage: ncclkv .*\n    run +Run a program on several ranks", shown.out, re.S)
    assert not shown.err


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"ncclkv {ncclkv.__version__}\n"


def test_a_dry_run_prints_the_command(places, monkeypatch, capsys, tmp_path):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NCCLKV_RESTART", "HYDRA_HOST_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    loads(monkeypatch, "MPICH Version: 5.0.2", None)
    own = mpirun(places / "python/mpirun", MPICH)
    options = ["-n", "3", "--timeout", "9", "--output-dir", str(tmp_path / "out")]
    assert main(["run", "--dry-run", *options, "--", "echo", "a b"]) == 0
    assert capsys.readouterr().out == (
        f"NCCLKV_RESTART=0 NCCLKV_TIMEOUT=9 OMP_NUM_THREADS=1 {own} -n 3 echo 'a b'\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_colon_among_the_arguments_is_refused(capsys):
    """Check colons: mpirun takes the word after one for another program."""
    assert main(["run", "-n", "2", "--dry-run", "--", "echo", "a", ":", "rm"]) == 2
    said = capsys.readouterr().err
    assert "has an argument ':', behind which mpirun would start another program" in said
    assert "sh -c 'echo a : rm'" in said
    assert main(["run", "-n", "1", "--dry-run", "--", "echo", "a", ":", "rm"]) == 0, "no mpirun"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "ncclkv: the job cannot be started: [Errno 24] Too many open files\n"),
        (
            ["--port", "9"],
            "ncclkv: --port 9 cannot be listened on: [Errno 24] Too many open files; "
            "give a free port, or 0 for any\n",
        ),
    ],
)
def test_the_error_names_a_port_only_with_several_hosts(options, said, monkeypatch, capsys):
    def fail(begin: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(run, "Job", fail)
    assert main(["run", "-n", "1", *options, "--", "true"]) == 2
    assert said in capsys.readouterr().err


def lacks_ranks(*, began: bool = True) -> Outcome:
    """Return the end of a start on two hosts, in which the ranks of node2 never began."""
    ranks = [Rank(0, "node1", 100 * began, place="node1"), Rank(1, place="node2")]
    return Outcome(dict(enumerate(ranks)), 2.0, 255, [])


@pytest.fixture
def starts(monkeypatch):
    """Return a function that runs given outcomes, with the restarts used and the pauses made."""

    def go(*outcomes: Outcome, restarts: int = 3, port: int | None = 0):
        made, pauses, left = [], [], list(outcomes)
        monkeypatch.setattr(concurrency, "sleep", pauses.append)
        monkeypatch.setattr(
            run, "run_once", lambda start, restart: made.append(restart) or left.pop(0)
        )
        options = argparse.Namespace(max_restarts=restarts, checkpoint=None)
        start = run.Start(2, [], ["true"], {}, port)
        return run.run_with_restarts(start, options), made, pauses

    return go


FINE = Outcome({0: Rank(0, "node1", 1, 0, 9.0)}, 9.0, 0, [])
FAILS = Outcome({0: Rank(0, "node1", 1, 3, 9.0)}, 9.0, 3, [])


def test_a_host_that_comes_back_uses_up_no_restart(starts, capfd):
    away = [lacks_ranks(began=number != 1) for number in range(8)]
    code, made, pauses = starts(FAILS, *away, FAILS, FINE, restarts=2)
    assert code == 0
    assert made == [0, *[1] * 9, 2]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    said = capfd.readouterr().err
    assert "(start 2 of at most 3): rank 1 on node2 did not begin; the launcher ended" in said
    assert "rank 1 on node2 did not begin: the same start again in 4 s, which uses up no" in said


def test_a_host_that_stays_away_ends_the_job(starts, capfd):
    code, made, pauses = starts(*[lacks_ranks()] * 16)
    assert (code, len(made), sum(pauses)) == (255, 16, 603)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "ncclkv run: no restart: rank 1 on node2 did not begin in 16 starts in a row"


def test_no_wait_without_restarts_or_on_one_machine(starts):
    assert starts(lacks_ranks(), restarts=0) == (255, [0], [])
    none = [lacks_ranks(began=False)] * 2
    assert starts(*none, port=None) == (255, [0, 1], [])
