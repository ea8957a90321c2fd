"""The example that gives metrics to TensorBoard, with and without a writer of its files."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.conftest import ROOT, Job

EXAMPLE = ROOT / "docs" / "examples" / "tensorboard.py"

NAMES = (
    "ncclkv/pushed_MB_per_s",
    "ncclkv/share_of_time_waited_for_ranks",
    "ncclkv/median_ms_that_rank_1_was_last_by",
)

WRITER = """
class SummaryWriter:
    def __init__(self, folder):
        self.folder = folder

    def add_scalar(self, name, value, step):
        print(f"{self.folder}: step {step}  {name}: {value:.4g}")
"""


def scalars(text: str) -> dict[tuple[int, str], float]:
    """Return the numbers that the example has written, by step and name."""
    found = re.findall(r"step +(\d+)  (ncclkv/.*): (\S+)$", text, re.MULTILINE)
    return {(int(step), name): float(value) for step, name, value in found}


def check(text: str) -> None:
    found = scalars(text)
    assert {step for step, _ in found} == {20, 40, 60, 80, 100}
    for step in (20, 100):
        assert found[step, NAMES[0]] > 0
        assert 0 <= found[step, NAMES[1]] < 1


@pytest.mark.limit(60)
def test_scalars_are_printed_without_a_writer(job: Job, tmp_path: Path) -> None:
    for name in ("torch", "tensorboardX"):
        (tmp_path / f"{name}.py").write_text("raise ImportError\n")
    run = job(str(EXAMPLE), ranks=2, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert run.code == 0, run.out + run.err
    check(run.out)


@pytest.mark.limit(60)
def test_a_writer_gets_the_scalars(job: Job, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    (tmp_path / "tensorboardX.py").write_text(WRITER)
    run = job(str(EXAMPLE), "FOLDER", ranks=2, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert run.code == 0, run.out + run.err
    check(run.out)
    assert "FOLDER: step 20" in run.out


@pytest.mark.limit(60)
@pytest.mark.skipif(not find_spec("tensorboardX"), reason="tensorboardX is not installed")
def test_tensorboardx_writes_its_file(job: Job, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(ROOT), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = job(str(EXAMPLE), str(tmp_path / "runs"), ranks=2, PYTHONPATH=path)
    assert run.code == 0, run.out + run.err
    (events,) = (tmp_path / "runs").glob("events.out.tfevents.*")
    assert b"ncclkv/pushed_MB_per_s" in events.read_bytes()
