"""Jobs under Slurm: by srun, by mpirun and by ``ncclkv run``, on one node and on two."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.conformance.readme import first_program
from tests.harness.source import ROOT
from tests.slurm.cluster import PROGRAMS, Cluster

pytestmark = pytest.mark.limit(90)

SRUN = "srun --mpi=pmi2"
MPIRUN = "mpirun"
RUNNER = "python -m ncclkv run --"
SIGNALS = ROOT / "docs" / "examples" / "signals.py"
DEAD_RANK = PROGRAMS / "dead_rank.py"


@pytest.fixture
def first(cluster: Cluster) -> Path:
    """Return README's first program."""
    path = cluster.folder / "first.py"
    path.write_text(first_program())
    return path


def printed(text: str) -> list[str]:
    """Return the lines of the first program, sorted, without the runner's numbers of ranks."""
    found = re.findall(r"^(?:\[\d\] )?(\d \[.*\])$", text, re.MULTILINE)
    return sorted(found)


RIGHT = sorted(
    f"{rank} {values}" for rank in range(4) for values in ("[10. 10. 10.]", "[8. 8. 8.]")
)


def test_srun_with_pmi2(cluster: Cluster, first: Path) -> None:
    ended = cluster.run(*SRUN.split(), "--nodes=2", "-n", "4", "python", str(first))
    assert ended.code == 0, ended.err
    assert printed(ended.out) == RIGHT


def test_srun_without_pmi2(cluster: Cluster, first: Path) -> None:
    """Check the error for Slurm's own default: one line for all ranks, with the line to type."""
    ended = cluster.run("srun", "-n", "4", "python", str(first))
    assert ended.code != 0
    own = [line for line in ended.err.splitlines() if not line.startswith("srun: ")]
    assert len(own) == 1, ended.err
    assert own[0].startswith("ncclkv: rank 0 of 4 on node1 "), ended.err
    assert own[0].endswith(f"; type: srun --mpi=pmi2 -n 4 python {first}"), ended.err


@pytest.mark.parametrize(
    ("launcher", "nodes"), [(SRUN, 1), (MPIRUN, 1), (MPIRUN, 2), (RUNNER, 1), (RUNNER, 2)]
)
def test_a_batch_job(cluster: Cluster, first: Path, launcher: str, nodes: int) -> None:
    """Check jobs that take the number of ranks and the hosts from the allocation."""
    job = cluster.submit(f"{launcher} python {first}", f"--nodes={nodes}", "--ntasks=4")
    assert job.end() == "0:0", job.output
    assert printed(job.output) == RIGHT, job.output
    line = "ncclkv run: 4 ranks, from SLURM_NTASKS=4\n"
    assert job.output.startswith(line) == (launcher == RUNNER), job.output


def test_a_batch_job_with_open_mpi(cluster: Cluster, first: Path) -> None:
    environment = os.environ.get("OPENMPI_ENV")
    if not environment:
        pytest.skip("OPENMPI_ENV names no environment with Open MPI")
    command = f"{RUNNER} {environment}/bin/python {first}"
    job = cluster.submit(command, "--nodes=2", "--ntasks=4")
    assert job.end() == "0:0", job.output
    assert printed(job.output) == RIGHT, job.output


def test_ranks_of_a_batch_job_without_a_number_of_tasks(cluster: Cluster) -> None:
    place = "$LOCAL_RANK of $LOCAL_WORLD_SIZE on $(hostname), $RANK of $WORLD_SIZE at $MASTER_ADDR"
    show = f"{RUNNER.removesuffix('--')} --torch-env -- sh -c 'echo {place}'"
    job = cluster.submit(show, "--nodes=2", "--ntasks-per-node=2")
    assert job.end() == "0:0", job.output
    hosts = ["node1", "node1", "node2", "node2"]
    places = [f"[{r}] {r % 2} of 2 on {hosts[r]}, {r} of 4 at node1" for r in range(4)]
    assert sorted(job.output.splitlines()[1:]) == places
    job = cluster.submit(show, "--nodes=2")
    assert job.end() == "0:0", job.output
    source, *lines = job.output.splitlines()
    assert source == "ncclkv run: 2 ranks, from SLURM_TASKS_PER_NODE=1(x2)"
    places = [f"[{r}] 0 of 1 on node{1 + r}, {r} of 2 at node1" for r in range(2)]
    assert sorted(lines) == places


def test_several_copies_of_the_runner(cluster: Cluster) -> None:
    ended = cluster.run("srun", "-n", "2", *RUNNER.split(), "true")
    assert ended.code == 2
    assert "a launcher started 2 copies of ncclkv run, and each would start a job" in ended.err


def test_the_short_form_of_hosts_is_refused_with_a_command_that_expands_it(
    cluster: Cluster,
) -> None:
    run = "python -m ncclkv run --hosts $SLURM_JOB_NODELIST -- true"
    job = cluster.submit(run, "--nodes=2", "--ntasks=2")
    assert job.end() == "2:0", job.output
    command = re.search(r"scontrol show hostnames '\S+'", job.output)
    assert command is not None, job.output
    ended = cluster.run(*shlex.split(command[0]))
    assert ended.out.split() == ["node1", "node2"]


@pytest.mark.parametrize(("launcher", "nodes"), [(SRUN, 2), (MPIRUN, 2), (RUNNER, 1), (RUNNER, 2)])
def test_scancel_with_signals(cluster: Cluster, tmp_path: Path, launcher: str, nodes: int) -> None:
    """Check SIGUSR1, on which the program saves, and SIGTERM, on which it saves and ends."""
    saved = cluster.folder / f"saved-{tmp_path.name}"
    command = f"{launcher} python {SIGNALS} {saved}"
    job = cluster.submit(command, f"--nodes={nodes}", "--ntasks=2")
    job.until(lambda: job.output.count("begins at step 0") == 2)
    job.send("USR1")
    job.until(lambda: any(saved.glob("step-*")))
    before = set(saved.glob("step-*"))
    job.send("TERM")
    assert job.end() == "0:0", job.output
    assert set(saved.glob("step-*")) - before, job.output


@pytest.mark.parametrize("launcher", [SRUN, RUNNER])
def test_scancel_of_a_job(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    """Check the end of all processes on both nodes; the fixture finds those that are left."""
    command = f"{launcher} python {SIGNALS} {cluster.folder / tmp_path.name}"
    job = cluster.submit(command, "--nodes=2", "--ntasks=2")
    job.until(lambda: job.output.count("begins at step 0") == 2)
    assert cluster.run("scancel", str(job.job_id)).code == 0
    job.end()


def test_a_dead_rank_under_the_runner(cluster: Cluster) -> None:
    job = cluster.submit(f"{RUNNER} python {DEAD_RANK}", "--nodes=2", "--ntasks=2")
    assert job.end() == "7:0", job.output
    who = r"rank 1 on node2 \(pid \d+\) ended with exit code 7"
    report = rf"ncclkv run: the job failed after [\d.]+ s \(start 1 of at most 1\): {who}, "
    assert re.search(report, job.output), job.output


def test_a_dead_rank_under_srun(cluster: Cluster) -> None:
    job = cluster.submit(f"{SRUN} python {DEAD_RANK}", "--nodes=2", "--ntasks=2")
    assert job.end() != "0:0", job.output
    assert "srun: error: node2: task 1: Exited with exit code 7" in job.output
