"""Files in ``launch/`` that people copy: short, with their checks on top, and on the page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.source import ROOT

PAGE = (ROOT / "docs" / "clusters.md").read_text()
NAMES = ("slurm.sbatch", "pbs.sh", "kubernetes-mpijob.yaml", "Dockerfile", "apptainer.def")
MOST_LINES = 39


@pytest.fixture(params=NAMES)
def recipe(request: pytest.FixtureRequest) -> Path:
    """Return one of the files."""
    return ROOT / "launch" / str(request.param)


def test_a_file_is_short(recipe):
    assert len(recipe.read_text().splitlines()) <= MOST_LINES


def test_a_file_begins_with_its_checks(recipe):
    top = "\n".join(recipe.read_text().splitlines()[:4])
    assert re.search(r"^# Checked: .+\. Not run on: .+\.$", top, re.MULTILINE), top
    assert "docs/clusters.md" in top


def test_the_page_has_a_row_for_a_file(recipe):
    assert f"\n| `launch/{recipe.name}` |" in PAGE


def test_the_lines_of_the_page_are_those_of_the_files():
    """Check the lines for signals, which the tests of the files run."""
    texts = [(ROOT / "launch" / name).read_text() for name in NAMES]
    for line in (
        "#SBATCH --signal=B:USR1@120",
        "timeout --foreground --preserve-status --signal=USR1",
    ):
        assert line in PAGE
        assert any(line in text for text in texts), line


def test_the_agent_of_the_page_runs_a_command_in_a_pod(tmp_path):
    """Check the command that it gives kubectl, for the arguments of MPICH's mpirun."""
    (text,) = re.findall(r"```\n(#!/bin/bash\n# agent.sh .*?)```", PAGE, re.DOTALL)
    for name, script in (("agent.sh", text), ("kubectl", '#!/bin/sh\nprintf "<%s>" "$@"\n')):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["./agent.sh", "-x", "train-worker-0.train.default.svc", "proxy", "--port", "a:1"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "<exec><train-worker-0><--><sh><-c><proxy --port a:1>"
