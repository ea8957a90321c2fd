"""Layer 5, NCCL on a real GPU: ranks that are missing, dead or at another call; no rank hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from tests.harness.source import ROOT
from tests.nccl.gpu import need_gpu

PROGRAM = ROOT / "tests" / "nccl" / "programs" / "faults.py"
pytestmark = pytest.mark.limit(80)
LIMIT = 60
"""Seconds after which a job counts as hanging, NCCL's start-up included."""

SAID = {
    "missing": "CommTimeout: rank 0 of 2",
    "killed": "",
    "another call": r"OrderMismatch: rank [01] of 2",
    "raises": "ValueError: on purpose",
}
"""Regular expressions of the job's output, by fault."""


def go_wrong(fault: str, store: str) -> None:
    """Run the program on two ranks, and check its end."""
    begin = time.monotonic()
    searched = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    job = ("launch/local.sh", "-n", "2", str(PROGRAM), fault, store)
    ended = subprocess.run(
        ["timeout", "-k", "5", str(LIMIT), *job],
        cwd=ROOT,
        env={
            **os.environ,
            "VENV": sys.prefix,
            "PYTHONPATH": os.pathsep.join(searched),
            "NCCLKV_SHARE_GPU": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    text = f"{ended.stdout}\n{ended.stderr}"
    assert time.monotonic() - begin < LIMIT, f"it hung:\n{text}"
    assert ended.returncode != 0, text
    assert "as it should be" in ended.stdout, text
    assert re.search(SAID[fault], text), text


@pytest.mark.parametrize("fault", SAID)
def test_a_fault_ends_the_job(fault: str) -> None:
    need_gpu()
    go_wrong(fault, "nccl")


# The hosts find differing calls, for values in any memory.
@pytest.mark.parametrize("fault", ["another call", "raises"])
def test_layer_0_a_fault_on_hosts_ends_alike(fault: str) -> None:
    go_wrong(fault, "dist_sync")
