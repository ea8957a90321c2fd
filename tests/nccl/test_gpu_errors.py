"""Layer 4, on one GPU: errors of CUDA and endless kernels reach the waiting host."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.harness.source import ROOT
from tests.nccl.gpu import need_gpu

PROGRAM = ROOT / "tests" / "nccl" / "programs" / "errors.py"
pytestmark = pytest.mark.limit(100)
LIMIT = 80
SEARCHED = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def run(fault: str) -> tuple[str, list[float]]:
    """Run the program in its own process, which may lose the device.

    The function returns the printed text, and the seconds until the calls returned.
    """
    ended = subprocess.run(
        ["timeout", "-k", "5", str(LIMIT), sys.executable, str(PROGRAM), fault],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": SEARCHED},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    text = f"{ended.stdout}\n{ended.stderr}"
    assert ended.returncode not in (124, 137), f"it hung:\n{text}"
    assert "as it should be" in ended.stdout, text
    seconds = [float(number) for number in re.findall(r"returned after (\S+) s", ended.stdout)]
    assert seconds, text
    return text, seconds


def test_an_illegal_address_is_reported_at_once() -> None:
    need_gpu()
    text, seconds = run("illegal address")
    assert "first: CommAborted: " in text, text
    assert "CUDA reports at" in text
    assert "cudaErrorIllegalAddress" in text
    assert "second: CommAborted: " in text
    assert "CommTimeout" not in text
    assert seconds[1] < 2, text


def test_a_kernel_that_does_not_end_is_the_device_s_own() -> None:
    need_gpu()
    text, seconds = run("spin")
    assert "first: CommTimeout: rank 0 of 1" in text, text
    assert "the device; set a longer timeout" in text
    assert "second: CommTimeout: " in text
    assert 3 <= seconds[0] < 6, text


def test_a_gpu_without_memory_refuses_the_key_and_goes_on() -> None:
    need_gpu()
    text, seconds = run("out of memory")
    assert "init: OutOfMemory: " in text, text
    assert "the store goes on: 1000.0" in text, text
    assert seconds[0] < 20, text
