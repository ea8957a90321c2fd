"""``launch/pythons.sh`` and ``launch/second.sh``, with stand-ins for the Pythons of a machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.harness.source import ROOT
from tests.unit.launch.test_local import program


class Machine:
    """A machine with some Pythons on PATH; the others are there and fail, as shims of pyenv do."""

    def __init__(self, folder: Path, *present: int) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        for minor in range(10, 15):
            self.put(self.tools / f"python3.{minor}", minor, works=minor in present)

    def put(self, path: Path, minor: int, works: bool = True) -> Path:
        """Write a stand-in that prints its path, or its minor version."""
        text = (
            f'case "$2" in *ensurepip*) echo "$0" ;; *minor*) echo {minor} ;; *) echo "$*" ;; esac'
        )
        return program(path, text if works else "exit 127")

    def run(self, *command: str, **environment: object) -> subprocess.CompletedProcess[str]:
        """Run a script with this machine's Pythons."""
        variables = {name: str(value) for name, value in environment.items()}
        return subprocess.run(
            command,
            cwd=ROOT,
            env={"PATH": f"{self.tools}:/usr/bin:/bin", "HOME": str(self.folder), **variables},
            capture_output=True,
            text=True,
            check=False,
        )


def test_each_version_has_a_line(tmp_path):
    machine = Machine(tmp_path, 11, 13)
    of_pyenv = machine.put(tmp_path / ".pyenv/versions/3.12.1/bin/python", 12)
    of_uv = machine.put(tmp_path / ".local/share/uv/python/cpython-3.14.0-x/bin/python", 14)
    done = machine.run("launch/pythons.sh")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["3.10"],
        ["3.11", f"{machine.tools}/python3.11"],
        ["3.12", str(of_pyenv)],
        ["3.13", f"{machine.tools}/python3.13"],
        ["3.14", str(of_uv)],
    ]


@pytest.mark.parametrize(
    ("present", "first", "second"),
    [((10, 11, 13), 11, 13), ((10, 12, 13), 13, 10), ((10,), 11, 10)],
)
def test_second_python_is_far_from_the_first(tmp_path, present, first, second):
    machine = Machine(tmp_path, *present)
    python = machine.put(tmp_path / "first", first)
    # An environment that is complete: the script goes on to the tests.
    venv = tmp_path / "venv"
    program(venv / "bin" / "python", 'echo "$*"')
    (venv / ".ready-mpiwheel").touch()
    done = machine.run("bash", "-x", "launch/second.sh", PYTHON=python, SECOND=venv)
    assert done.returncode == 0, done.stderr
    assert f"PYTHON={machine.tools}/python3.{second}\n" in done.stderr
    assert done.stdout.splitlines() == ["--version", "-m tests.run --shares 0 unit ranks-2"]


def test_without_a_second_python_it_says_so(tmp_path):
    machine = Machine(tmp_path, 12)
    for arguments in ((), ("setup",)):
        python = machine.put(tmp_path / "first", 12)
        done = machine.run("launch/second.sh", *arguments, PYTHON=python)
        assert done.returncode == 0, done.stderr
        assert "there is no Python of 3.10 to 3.14 beside 3.12" in done.stdout
        assert "are left out; put one on PATH" in done.stdout
