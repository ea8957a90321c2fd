"""Jobs on a host that ssh cannot reach, with a program in place of ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.jobs.conftest import ROOT

SSH = """#!/bin/sh
# Fail as ssh does for the second host, and run the command here for the other.
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in node2) echo "$REASON" >&2; exit 255 ;; esac
shift
exec sh -c "$*"
"""


@pytest.mark.parametrize(
    "reason",
    [
        "ssh: connect to host node2 port 22: Connection refused",
        "root@node2: Permission denied (publickey,password).",
    ],
)
def test_a_host_that_cannot_be_reached(reason: str, tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    agents = {
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(ssh),
        "PRTE_MCA_plm_ssh_agent": str(ssh),
    }
    run = subprocess.run(
        [
            *(sys.executable, "-m", "ncclkv", "run", "--hosts", "node1:1,node2:1", "--"),
            *(sys.executable, "-c", "import ncclkv; ncclkv.create('dist')"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "REASON": reason, **agents},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=stretched(30),
        check=False,
    )
    assert run.returncode != 0
    said = run.stderr.splitlines()
    assert said[0] == reason, run.stderr
    assert said[1].startswith("ncclkv run: the job failed after ")
    assert said[1].endswith(f": node2 cannot be reached: {reason}")
    assert said[2].startswith("'ssh node2 true' must work without a password here, or set ")
    assert len(said) == 3, "no lines of mpirun's source files"
