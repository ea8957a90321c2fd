"""Refusals of ``launch/setup.sh``, and files that it does not change.

Every ``make`` runs the script with success.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.harness.source import ROOT
from tests.unit.launch.test_local import mpirun, program


def setup(*arguments: str, path: str = "/usr/bin:/bin", **environment: object):
    """Run the script with these environment variables alone."""
    return subprocess.run(
        ["launch/setup.sh", *arguments],
        cwd=ROOT,
        env={"PATH": path, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def venv(tmp_path):
    """Make an environment whose python prints its arguments and does nothing."""
    program(tmp_path / "venv" / "bin" / "python", 'echo "python $*"')
    return tmp_path / "venv"


def test_python_must_be_there(tmp_path):
    done = setup("train", VENV=tmp_path / "venv", PYTHON="python-of-nobody")
    assert done.returncode == 1
    assert "there is no python-of-nobody; name a Python of 3.10 or newer" in done.stderr


def test_python_must_be_new_enough(tmp_path):
    old = program(tmp_path / "old", 'case "$1" in -c) exit 1 ;; *) echo Python 3.8.2 ;; esac')
    done = setup("train", VENV=tmp_path / "venv", PYTHON=old)
    assert done.returncode == 1
    assert f"{old} is Python 3.8.2, and ncclkv needs Python 3.10 or newer" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_python_must_be_able_to_make_environments(tmp_path):
    bare = program(tmp_path / "bare", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    done = setup("train", VENV=tmp_path / "venv", PYTHON=bare)
    assert done.returncode == 1
    assert "its modules venv and ensurepip are missing" in done.stderr
    assert "python3-venv" in done.stderr


def test_an_extra_is_installed_and_recorded(venv):
    done = setup("lint", VENV=venv)
    assert done.returncode == 0, done.stderr
    assert "--editable .[lint]" in done.stdout
    assert (venv / ".ready-lint").exists()


PIP = """case "$*" in *"pip config"*) echo "$SETTINGS"; exit ;; *install*) ;; *) exit ;; esac
echo "Requirement already satisfied: numpy"
echo "Collecting torch"
while [ ! -e "$SEEN" ]; do sleep 0.01; done
echo "  Downloading torch-2.whl.metadata"
echo "  Downloading torch-2.whl (800 MB)"
exit "$CODE"
"""


def test_each_new_package_is_a_line_while_pip_runs(venv, tmp_path):
    program(venv / "bin" / "python", PIP)
    seen = tmp_path / "seen"
    variables = {"PATH": "/usr/bin:/bin", "VENV": str(venv), "SEEN": str(seen), "CODE": "3"}
    with subprocess.Popen(
        ["launch/setup.sh", "lint"], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True
    ) as setup:
        assert setup.stdout is not None
        lines = [setup.stdout.readline(), setup.stdout.readline()]
        seen.touch()
        lines += setup.stdout.readlines()
    assert [line.strip() for line in lines] == [
        f"installing ncclkv[lint] into {venv}, by pip",
        "Collecting torch",
        "Downloading torch-2.whl (800 MB)",
    ]
    assert setup.returncode != 0, "a failed pip behind a pipe"


@pytest.fixture
def with_uv(tmp_path):
    """Make a stand-in for uv that prints its arguments and constraints; return a PATH with it."""
    program(tmp_path / "tools" / "uv", 'echo "uv $* constraint=$UV_CONSTRAINT"')
    return f"{tmp_path / 'tools'}:/usr/bin:/bin"


def test_uv_installs_where_it_is_present(venv, with_uv):
    done = setup("lint", "train", path=with_uv, VENV=venv, PIP_CONSTRAINT="old.txt")
    assert done.returncode == 0, done.stderr
    python = venv / "bin" / "python"
    assert f"uv pip install --python {python} --editable .[lint,train]" in done.stdout
    assert "constraint=old.txt" in done.stdout
    assert "python -m pip install" not in done.stdout
    assert (venv / ".ready-lint").exists()


@pytest.mark.parametrize("setting", ["global.index-url='https://x/'", ":env:.find-links='/w'"])
def test_pip_installs_where_it_has_an_index_of_its_own(venv, with_uv, tmp_path, setting):
    program(venv / "bin" / "python", PIP)
    (tmp_path / "seen").touch()
    done = setup("lint", path=with_uv, VENV=venv, SETTINGS=setting, SEEN=tmp_path / "seen", CODE=0)
    assert done.returncode == 0, done.stderr
    assert "by pip" in done.stdout
    assert "Collecting torch" in done.stdout


def test_several_extras_are_installed_by_one_call(venv):
    mpirun(venv / "bin" / "mpirun")
    done = setup("lint", "mpiwheel", "torch", VENV=venv)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("--editable") == 1
    assert "--editable .[lint,mpi,torch]" in done.stdout
    assert {path.name for path in venv.glob(".ready-*")} == {
        ".ready-lint",
        ".ready-mpiwheel",
        ".ready-torch",
    }


def test_a_failed_installation_is_not_recorded(venv):
    program(venv / "bin" / "python", 'case "$*" in *install*) exit 1 ;; esac')
    assert setup("lint", VENV=venv).returncode != 0
    assert not (venv / ".ready-lint").exists()


def test_the_sites_mpi_is_not_shadowed_by_the_wheel(venv, tmp_path):
    site = mpirun(tmp_path / "site" / "mpirun")
    done = setup("mpi", path=f"{site.parent}:/usr/bin:/bin", VENV=venv)
    assert done.returncode == 0, done.stderr
    assert "install" not in done.stdout
    assert (venv / ".ready-mpi").exists()


def test_mpi_of_the_wheel_is_installed_when_asked_for(venv, tmp_path):
    site = mpirun(tmp_path / "site" / "mpirun")
    done = setup("mpiwheel", path=f"{site.parent}:/usr/bin:/bin", VENV=venv)
    assert "--editable .[mpi]" in done.stdout


def test_an_unusable_site_mpi_is_named_with_the_remedy(venv, tmp_path):
    site = mpirun(tmp_path / "site" / "mpirun", code=1)
    done = setup("mpi", path=f"{site.parent}:/usr/bin:/bin", VENV=venv)
    assert done.returncode == 1
    assert f"mpi4py cannot use the MPI of {site}" in done.stderr
    assert "make MPI=wheel train" in done.stderr
    assert not (venv / ".ready-mpi").exists()
