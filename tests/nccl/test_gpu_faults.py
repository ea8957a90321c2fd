"""Layer 5, NCCL on a real GPU: ranks that are missing, dead or at another call; nothing hangs."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from tests.harness.source import ROOT
from tests.nccl.gpu import need_gpu

PROGRAM = ROOT / "tests" / "nccl" / "programs" / "faults.py"
pytestmark = pytest.mark.limit(150)
LIMIT = 120
"""Seconds after which a job hangs, start-up of NCCL included."""


@pytest.mark.parametrize("fault", ["missing", "killed", "another call", "raises"])
def test_a_fault_ends_the_job(fault: str) -> None:
    need_gpu()
    begin = time.monotonic()
    ended = subprocess.run(
        ["timeout", "-k", "5", str(LIMIT), "launch/local.sh", "-n", "2", str(PROGRAM), fault],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NCCLKV_SHARE_GPU": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    text = f"{ended.stdout}\n{ended.stderr}"
    assert time.monotonic() - begin < LIMIT, f"it hung:\n{text}"
    assert ended.returncode != 0, text
    assert "as it should be" in ended.stdout, text
    if fault in ("missing", "another call"):
        assert "CommTimeout: rank 0 of 2" in text
    if fault == "raises":
        assert "ValueError: on purpose" in text
