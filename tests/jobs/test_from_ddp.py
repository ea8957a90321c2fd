"""The script of ``docs/from-ddp.md``: the same losses under torchrun, mpirun and ``ncclkv run``."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.job import start
from tests.harness.slow import stretched
from tests.jobs.conftest import ROOT

PAGE, TORCH = ROOT / "docs" / "from-ddp.md", ROOT / "docs" / "torch.md"
BEFORE, AFTER = (ROOT / "docs" / "examples" / f"ddp_{name}.py" for name in ("before", "after"))
EPOCHS = 4

TOLERANCE = 1e-5
"""Relative: 80 roundings of float32, one for each step of a run.

On two ranks both wrappers halve sums of two numbers, which is exact, so the losses are equal here.
Another build of torch or of Gloo may sum a batch in another order.
"""


def differences() -> list[str]:
    """Return the lines of both scripts, with ``-`` and ``+`` before lines that one alone has."""
    before, after = (path.read_text().splitlines() for path in (BEFORE, AFTER))
    return [*difflib.unified_diff(before, after, n=1000, lineterm="")][3:]


def losses(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"epoch \d+: loss ([0-9.]+)", output)]


def torchrun(checkpoint: Path, epochs: int) -> list[float]:
    """Return the losses of the script before, on two ranks of torchrun over Gloo."""
    options = ("--epochs", str(epochs), "--checkpoint", str(checkpoint))
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(BEFORE))
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, *command, *options],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=stretched(60),
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return losses(run.stdout)


def here(checkpoint: Path, epochs: int, *, run: bool = False) -> list[float]:
    """Return the losses of the script after, on two ranks of mpirun or of ``ncclkv run``."""
    options = ("--epochs", str(epochs), "--checkpoint", str(checkpoint))
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    mark = checkpoint.with_name("mark")
    job = start(AFTER, *options, ranks=2, mark=mark, limit=60, run=run, **variables)
    assert job.code == 0, job.out + job.err
    return losses(job.out)


@pytest.mark.limit(240)
def test_losses_are_those_of_ddp_and_training_continues(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is absent; the extra `torch` installs it")
    ddp = torchrun(tmp_path / "ddp.pt", EPOCHS // 2)
    own = here(tmp_path / "own.pt", EPOCHS)
    assert len(own) == EPOCHS
    assert own[0] > 2 * own[-1] > 0, "the loss falls"
    assert ddp == pytest.approx(own[: EPOCHS // 2], rel=TOLERANCE)
    continued = here(tmp_path / "ddp.pt", EPOCHS, run=True)  # from DDP's checkpoint
    assert continued == pytest.approx(own[EPOCHS // 2 :], rel=TOLERANCE)


def test_the_page_shows_all_lines_of_both_scripts() -> None:
    block = re.search(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    assert [line.rstrip() for line in block[1].splitlines()] == [
        line.rstrip() for line in differences()
    ]


def test_the_page_of_torch_counts_the_lines_that_change() -> None:
    lines = [line for line in differences() if line[1:].strip()]
    gone, new, all_before = (sum(line[0] in signs for line in lines) for signs in ("-", "+", "- "))
    assert f"{gone} of {all_before} lines" in " ".join(TORCH.read_text().split())
    assert new <= gone
