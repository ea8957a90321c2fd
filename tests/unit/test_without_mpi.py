"""Functions that work on a machine without MPI, in processes that cannot import mpi4py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A None in sys.modules makes the import fail, as on a machine without the package.
PRELUDE = """
import sys
sys.modules["mpi4py"] = None
import numpy as np
import ncclkv
def works(kv):
    kv.init("w", np.zeros(3))
    kv.push("w", np.ones(3))
    assert kv.pull("w").tolist() == [kv.num_workers] * 3
    kv.barrier()
    kv.close()
"""


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code after the prelude, in a process without a launcher."""
    launchers = ("PMI_", "PMIX_", "OMPI_", "SLURM_", "MV2_", "FLUX_")
    own = {name: text for name, text in os.environ.items() if not name.startswith(launchers)}
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        cwd=ROOT,
        env={**own, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_stores_of_one_rank_work() -> None:
    run = python(
        """
for name in ("local", "local_update_cpu", "device", "local_allreduce_device", "threads", "dist",
             "dist_sync"):
    kv = ncclkv.create(name)
    assert (kv.rank, kv.num_workers) == (0, 1), name
    works(kv)
assert "mpi4py.MPI" not in sys.modules
"""
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_threads_work_at_any_size() -> None:
    run = python("ncclkv.testing.run_ranks(3, lambda: works(ncclkv.create('threads')))")
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("name", ["nccl", "dist_device_sync", "dist_sync_device"])
def test_nccl_stores_name_what_is_missing(name: str) -> None:
    run = python(f"ncclkv.create({name!r})")
    assert run.returncode != 0
    last = run.stderr.splitlines()[-1]
    assert last.startswith(
        f"ncclkv.errors.LaunchError: create('{name}'): NCCL needs a GPU on every rank. rank 0 ("
    )
    assert "create('dist_sync') keeps values in host memory" in last


@pytest.mark.parametrize("name", ["dist", "dist_sync"])
def test_several_ranks_need_mpi(name: str) -> None:
    run = python(f"ncclkv.create({name!r})", PMI_SIZE="2", PMI_RANK="1")
    assert run.returncode != 0
    assert run.stderr.startswith("ncclkv: rank 1 of 2 on "), "the job is ended, and by name"
    said = "ncclkv.errors.LaunchError: this job has several ranks, but mpi4py cannot be imported"
    assert said in run.stderr
    assert "pip install 'ncclkv[mpi]'" in run.stderr


def test_one_rank_under_a_launcher_needs_no_mpi() -> None:
    run = python("works(ncclkv.create('dist'))", PMI_SIZE="1", PMI_RANK="0")
    assert (run.returncode, run.stderr) == (0, "")


def test_importing_the_package_does_not_start_mpi() -> None:
    run = python("assert not [name for name in sys.modules if name.startswith('mpi4py.')]")
    assert run.returncode == 0, run.stderr


def test_the_errors_of_an_absent_library_and_an_absent_package_differ(tmp_path: Path) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("class rc:\n    initialize, finalize = True, None\n")
    (package / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    run = python(
        "del sys.modules['mpi4py']; ncclkv.create('dist')", PMI_SIZE="2", PYTHONPATH=str(tmp_path)
    )
    assert run.returncode != 0
    assert (
        "mpi4py finds no MPI library (cannot load MPI library); load your site's MPI" in run.stderr
    )
