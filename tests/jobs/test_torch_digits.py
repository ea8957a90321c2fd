"""The example of a torch module: the losses of ncclkv are those of torch's DDP on Gloo."""

from __future__ import annotations

import itertools
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness import digits
from tests.harness.extent import some_or_all
from tests.jobs.conftest import ROOT, Job

pytest.importorskip("sklearn", reason="scikit-learn is absent; the extra `train` installs it")
pytest.importorskip("tqdm", reason="tqdm is absent; the extra `train` installs it")
pytest.importorskip("torch", reason="torch is absent; the extra `torch` installs it")

EXAMPLE = ROOT / "docs" / "examples" / "torch_digits.py"
EPOCHS = 4
TOLERANCES = {"float32": 1e-5, "float64": 1e-12}


def losses(output: str) -> list[float]:
    """Return the printed losses: of training and of the test, for each epoch."""
    return [float(found) for found in re.findall(r"loss ([0-9.]+)", output)]


@pytest.mark.limit(120)
@pytest.mark.parametrize(
    ("ranks", "dtype"),
    some_or_all([(2, "float64")], [*itertools.product((1, 2, 3, 4), TOLERANCES)]),
)
def test_losses_are_those_of_ddp(job: Job, ranks: int, dtype: str, tmp_path: Path) -> None:
    image = tmp_path / "losses.png"
    plot = f"--plot {image}" if find_spec("matplotlib") else ""
    both = [f"--epochs {EPOCHS} --dtype {dtype} {options}" for options in (plot, "--ddp")]
    digits.copy(tmp_path)
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    # In one process: the import of torch takes longer than the training.
    run = job("in_turn.py", str(EXAMPLE), *both, ranks=ranks, limit=50, PYTHONPATH=path)
    assert run.code == 0, run.out + run.err
    assert run.out.count("epoch") == 2 * EPOCHS, "rank 0 alone prints"
    lines = run.out.splitlines()
    assert all(float(lines[last].split()[-1].removesuffix("%")) > 94 for last in (EPOCHS - 1, -1))
    found = losses(run.out)
    ours, ddps = found[: 2 * EPOCHS], found[2 * EPOCHS :]
    assert len(ours) == len(ddps)
    assert ours[0] > 10 * ours[-2] > 0, "the training loss falls"
    assert ours == pytest.approx(ddps, rel=0, abs=TOLERANCES[dtype])
    assert not plot or image.read_bytes().startswith(b"\x89PNG")
