"""``ncclkv doctor`` under Slurm: by srun with both plugins, and in a batch job."""

from __future__ import annotations

import json

import pytest

from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.limit(90)

DOCTOR = ("python", "-m", "ncclkv", "doctor", "--json")


def test_srun_with_pmi2_makes_one_table(cluster: Cluster) -> None:
    ended = cluster.run("srun", "--mpi=pmi2", "--nodes=2", "-n", "4", *DOCTOR)
    assert ended.code == 0, ended.err
    read = json.loads(ended.out)
    rows = {row["thing"]: row for row in read["rows"]}
    assert read["ranks"] == 4
    assert rows["launcher"]["found"] == "srun"
    assert rows["ranks"]["used"].endswith("on node2")
    assert rows["sums"]["found"] == "exact"


def test_sruns_default_names_the_plugin(cluster: Cluster) -> None:
    ended = cluster.run("srun", "-n", "4", *DOCTOR)
    assert ended.code != 0
    [row] = [row for row in json.loads(ended.out)["rows"] if row["thing"] == "self-test"]
    assert row["level"] == "blocks"
    assert row["mend"].startswith("srun --mpi=pmi2 -n 4 ")


def test_a_batch_job_takes_the_ranks_of_its_allocation(cluster: Cluster) -> None:
    job = cluster.submit(" ".join(DOCTOR), "--nodes=2", "--ntasks=4")
    assert job.end() == "0:0", job.output
    read = json.loads(job.output[job.output.index("{\n") :])
    assert read["ranks"] == 4
    assert not read["blocks"]
