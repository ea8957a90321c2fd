"""The examples by field: each checks its own result, and prints the outcome."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncclkv
from tests.harness.slow import stretched
from tests.jobs.conftest import LIMIT, ROOT, Job

EXAMPLES = ROOT / "docs" / "examples"

pytestmark = pytest.mark.limit(90)


def test_the_ensemble_on_three_ranks_is_that_of_one_process(job: Job) -> None:
    run = job(str(EXAMPLES / "ensemble.py"), ranks=3)
    assert run.code == 0, run.err
    assert "check: equal to one process" in run.out


def test_gradients_of_jax_on_two_ranks_train_as_in_one_process(job: Job) -> None:
    pytest.importorskip("jax", reason="jax is absent; the extra `jax` installs it")
    # The test's own path: JAX may lie in a folder beside the environment.
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    example = str(EXAMPLES / "jax_pytree.py")
    run = job(example, ranks=2, limit=60, JAX_PLATFORMS="cpu", PYTHONPATH=path)
    assert run.code == 0, run.err
    assert "weights: bit-identical on all ranks" in run.out
    assert "check: equal to one process" in run.out


def test_the_transformation_of_jax_is_a_part_of_a_chain_of_optax(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    reason = "optax is absent; the extra `jax` installs it"
    optax: Any = pytest.importorskip("optax", reason=reason)
    example = runpy.run_path(str(EXAMPLES / "jax_pytree.py"))
    with ncclkv.create("local") as kv:
        chain = optax.chain(example["average_over"](kv), optax.sgd(0.5))
        params = {"w": np.ones(2, np.float32)}
        grads = {"w": np.full(2, 4.0, np.float32)}
        updates, _ = chain.update(grads, chain.init(params), params)
        assert updates["w"].tolist() == [-2.0, -2.0]


def test_the_long_run_continues_after_a_kill(tmp_path: Path) -> None:
    """Kill a rank after the first checkpoint; the second start ends with the right count."""
    pytest.importorskip("safetensors", reason="the extra `checkpoint` installs safetensors")
    saved, output = tmp_path / "saved", tmp_path / "output"
    runner = (sys.executable, "-m", "ncclkv", "run", "-n", "2", "--max-restarts", "1")
    program = (sys.executable, str(EXAMPLES / "long_run.py"), "--steps", "120")
    with output.open("w") as file:
        process = subprocess.Popen(
            [*runner, "--checkpoint", str(saved), "--", *program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    begun = re.compile(r"rank 1, process (\d+), begins at step (\d+)")
    try:
        end = time.monotonic() + stretched(LIMIT)
        while not (list(saved.glob("step-*")) and begun.search(output.read_text())):
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.02)
        (rank, first), *_ = begun.findall(output.read_text())
        os.kill(int(rank), signal.SIGKILL)
        assert process.wait(stretched(3 * LIMIT)) == 0, output.read_text()
    finally:
        process.terminate()
        process.wait(stretched(LIMIT))
    text = output.read_text()
    (_, second) = begun.findall(text)
    assert (first, int(second[1]) >= 10) == ("0", True), text
    assert "check: every point counts once" in text


def test_the_notebook_prints_what_is_saved_in_it(tmp_path: Path) -> None:
    client: Any = pytest.importorskip("nbclient", reason="the extra `test` installs nbclient")
    nbformat: Any = pytest.importorskip("nbformat", reason="the extra `test` installs nbformat")
    saved = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    fresh = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)}
    runner = client.NotebookClient(
        fresh, timeout=int(stretched(60)), resources={"metadata": {"path": str(tmp_path)}}
    )
    with runner.setup_kernel(env=environment):
        for index, cell in enumerate(fresh.cells):
            runner.execute_cell(cell, index)
    assert [shown(cell) for cell in fresh.cells] == [shown(cell) for cell in saved.cells]
    assert sum(map(bool, map(shown, saved.cells))) >= 3


def shown(cell: Any) -> list[str]:
    """Return the texts that a cell shows."""
    outputs = cell.get("outputs", ())
    return [each.get("text") or each["data"]["text/plain"] for each in outputs]
