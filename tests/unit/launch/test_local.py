"""``launch/local.sh`` with a stand-in for mpirun that prints its arguments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.harness.source import ROOT

SCRIPT = ROOT / "launch" / "local.sh"
MPICH = "HYDRA build details:\\n    Version: 5.0.2"
OPEN_MPI = "mpirun (Open MPI) 5.0.11"
SHOWN = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "OMPI_MCA_rmaps_base_oversubscribe",
    "PRTE_MCA_rmaps_default_mapping_policy",
    "CUDA_VISIBLE_DEVICES",
)
"""Variables that the stand-in prints."""


def program(path: Path, text: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def mpirun(path: Path, version: str = MPICH, code: int = 0) -> Path:
    """Write a stand-in that answers --version, or prints its name, arguments and environment."""
    show = "\n".join(f'echo "{name}=${{{name}-}}"' for name in SHOWN)
    return program(
        path,
        f'if [ "$1" = --version ]; then printf "{version}\\n"; exit; fi\n'
        f'echo "$0"\nfor each in "$@"; do echo "<$each>"; done\n{show}\nexit {code}\n',
    )


@pytest.fixture
def venv(tmp_path):
    """Make an environment with python and without mpirun."""
    program(tmp_path / "venv" / "bin" / "python", "")
    return tmp_path / "venv"


def launch(*arguments: str, path: str = "/usr/bin:/bin", **environment: object):
    """Run the script with these environment variables alone."""
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env={"PATH": path, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        check=False,
    )


def test_arguments_after_the_ranks_go_to_python(venv):
    mpirun(venv / "bin" / "mpirun")
    done = launch("-n", "3", "-m", "pytest", "-n", "a b", "", "*", VENV=venv)
    assert done.returncode == 0, done.stderr
    python = f"<{venv}/bin/python>"
    expected = ["<-n>", "<3>", python, "<-m>", "<pytest>", "<-n>", "<a b>", "<>", "<*>"]
    assert done.stdout.splitlines()[1:10] == expected


def test_exit_code_is_that_of_mpirun(venv):
    mpirun(venv / "bin" / "mpirun", code=7)
    assert launch("-n", "2", "train.py", VENV=venv).returncode == 7


def test_mpirun_beside_python_goes_before_that_on_path(venv, tmp_path):
    site = mpirun(tmp_path / "site" / "mpirun")
    path = f"{site.parent}:/usr/bin:/bin"
    assert launch("-n", "2", "x.py", path=path, VENV=venv).stdout.startswith(f"{site}\n")
    own = mpirun(venv / "bin" / "mpirun")
    assert launch("-n", "2", "x.py", path=path, VENV=venv).stdout.startswith(f"{own}\n")


def test_active_environment_is_used_unless_another_is_named(venv, tmp_path):
    active = tmp_path / "active"
    program(active / "bin" / "python", "")
    for each in (active, venv):
        mpirun(each / "bin" / "mpirun")
    assert f"<{active}/bin/python>" in launch("-n", "1", "x.py", VIRTUAL_ENV=active).stdout
    both = launch("-n", "1", "x.py", VIRTUAL_ENV=active, VENV=venv)
    assert f"<{venv}/bin/python>" in both.stdout


def test_open_mpi_gets_the_options_that_other_mpis_do_not_need(venv):
    mpirun(venv / "bin" / "mpirun", version=OPEN_MPI)
    shown = launch("-n", "2", "x.py", VENV=venv).stdout.splitlines()
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" in shown
    assert "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in shown
    assert "OMPI_MCA_rmaps_base_oversubscribe=1" in shown
    assert "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe" in shown


def test_mpich_gets_no_options(venv):
    mpirun(venv / "bin" / "mpirun")
    shown = launch("-n", "2", "x.py", VENV=venv).stdout
    assert "OMPI_ALLOW_RUN_AS_ROOT=\n" in shown


@pytest.mark.parametrize(
    ("ranks", "given", "expected"), [("1", {}, ""), ("2", {}, "1"), ("2", {"threads": "3"}, "3")]
)
def test_numbers_of_threads_are_set(venv, ranks, given, expected):
    mpirun(venv / "bin" / "mpirun")
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = dict.fromkeys(names, given["threads"]) if given else {}
    shown = launch("-n", ranks, "x.py", VENV=venv, **environment).stdout.splitlines()
    for name in names:
        assert f"{name}={expected}" in shown


def test_devices_are_left_as_they_are(venv):
    mpirun(venv / "bin" / "mpirun")
    done = launch("-n", "2", "x.py", VENV=venv, CUDA_VISIBLE_DEVICES="4,5")
    assert "CUDA_VISIBLE_DEVICES=4,5" in done.stdout.splitlines()


@pytest.mark.parametrize("ranks", ["", "0", "-1", "4x", "two", "train.py"])
def test_number_of_ranks_is_checked(venv, ranks):
    done = launch("-n", ranks, "x.py", VENV=venv)
    assert done.returncode == 2
    assert f"-n must be a number of ranks, 1 or more, and is '{ranks}'" in done.stderr


def test_a_missing_program_is_refused(venv):
    done = launch("-n", "4", VENV=venv)
    assert done.returncode == 2
    assert "there is no program to start: launch/local.sh -n 4 train.py" in done.stderr


def test_without_mpirun_the_command_to_install_is_printed(venv, tmp_path):
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(Path("/usr/bin") / name)
    done = launch("-n", "4", "x.py", path=str(tmp_path), VENV=venv)
    assert done.returncode == 2
    assert f"there is no mpirun, beside {venv}/bin/python or on PATH" in done.stderr
    assert "'make MPI=wheel train' installs one" in done.stderr


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_prints_the_usage(option):
    done = launch(option)
    assert done.returncode == 0
    assert "usage: launch/local.sh -n RANKS PROGRAM [ARGUMENT ...]" in done.stdout


def test_wrong_arguments_print_the_usage():
    done = launch("train.py")
    assert done.returncode == 2
    assert "usage: launch/local.sh" in done.stderr
