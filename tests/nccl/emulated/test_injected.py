"""Layer 3b: each CUDA call of a step fails once, and each rank raises the reason at once."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

import pytest

from tests.harness.slow import stretched
from tests.harness.source import ROOT

PROGRAM = "tests/nccl/emulated/programs/injected.py"
FUNCTIONS = (
    "cuLaunchKernel",
    "cudaEventCreateWithFlags",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaGetDevice",
    "cudaMemcpyAsync",
    "cudaSetDevice",
    "cudaStreamIsCapturing",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
    "ncclAllReduce",
)
CASES = [(name, ranks) for name in FUNCTIONS for ranks in (1, 2)]
# A communicator of one rank calls neither: its collectives are copies, complete at once.
CASES += [("cudaStreamGetCaptureInfo", 2), ("ncclCommGetAsyncError", 2)]
WORDS = ("an illegal memory access was encountered", "ncclSystemError", "unhandled system error")


@dataclass
class Line:
    """One rank's part in one fault.

    Attributes
    ----------
    failed : bool
        Whether a call failed on this rank.
    seconds : float
        Seconds until the error.
    """

    rank: int
    call: str
    failed: bool
    seconds: float
    outcome: str


def lines(function: str, ranks: int) -> list[Line]:
    """Run the program, and return its line of each fault and rank."""
    command = ["launch/local.sh", "-n", str(ranks), PROGRAM, function]
    # A blocking communicator is queried only in a long wait; another one, after each call.
    variables = {"NCCL_COMM_BLOCKING": "0"} if function == "ncclCommGetAsyncError" else {}
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=stretched(110),
        check=False,
    )
    text = f"{ended.stdout}\n{ended.stderr}"
    assert ended.returncode == 0, text
    found = []
    for line in ended.stdout.splitlines():
        if line.startswith("rank "):
            rank, call, failed, seconds, outcome = line.removeprefix("rank ").split(" | ", 4)
            found.append(Line(int(rank), call, failed == "True", float(seconds), outcome))
    assert found, text
    assert len(found) % ranks == 0, text
    return found


@pytest.mark.limit(120)
@pytest.mark.parametrize(("function", "ranks"), CASES)
def test_each_call_of_a_step(function: str, ranks: int) -> None:
    found = lines(function, ranks)
    assert all(line.outcome != "passed" for line in found if line.failed)
    told = [line for line in found if line.outcome != "passed"]
    assert told, "no call failed"
    for line in told:
        assert line.outcome.startswith(("CommAborted: ", "RankLost: ")), line
        assert any(word in line.outcome for word in WORDS), line
        assert line.seconds < stretched(2.0), line
