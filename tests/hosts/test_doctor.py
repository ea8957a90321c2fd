"""``ncclkv doctor`` over several hosts: a report of each, and rows of hosts that differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.job import Ended
from tests.harness.source import ROOT
from tests.hosts.lab.jobs import Jobs
from tests.hosts.test_run import RUN, agents

pytestmark = pytest.mark.limit(90)

DOCTOR = (*RUN[:-1], "doctor", "--json")

OF_NODE2 = """
import os
if os.uname().nodename == "node2":
    import ncclkv
    ncclkv.__version__ = "9"
"""
"""Program at the start of each Python, which gives a host another version."""


def rows(ended: Ended) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a run by their things."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(ended.out)["rows"]:
        found.setdefault(row["thing"], []).append(row)
    return found


def test_ranks_of_two_hosts_make_one_table(two_by_two: Jobs) -> None:
    ended = two_by_two.run(*DOCTOR, "--hosts", "node1:2,node2:2", **agents(two_by_two))
    assert ended.code == 0, ended.out + ended.err
    found = rows(ended)
    assert found["ranks"][0]["used"] == "ranks 0, 1 on node1; ranks 2, 3 on node2"
    assert found["named hosts"][0]["found"] == "node1 is 10.77.0.1, node2 is 10.77.0.2"
    assert [row["found"] for row in found["host name"]] == [
        "node1 is 10.77.0.1",
        "node2 is 10.77.0.2",
    ]
    assert found["MPI start"][0]["found"] == "4 ranks joined"
    assert found["sums"][0]["found"] == "exact"
    assert found["open files"][0]["used"] == "76 needed by 2 ranks of a host"


def test_another_version_on_one_host(two_by_two: Jobs) -> None:
    folder = two_by_two.network.folder / "at_start"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(OF_NODE2)
    variables = {**agents(two_by_two), "PYTHONPATH": f"{folder}:{ROOT}"}
    ended = two_by_two.run(*DOCTOR, "--hosts", "node1:2,node2:2", "--no-test", **variables)
    assert ended.code == 1, ended.out + ended.err
    first, second = rows(ended)["ncclkv"]
    assert (first["level"], first["ranks"]) == ("ok", [0, 1])
    assert (second["level"], second["ranks"], second["found"]) == ("blocks", [2, 3], "9")


def test_a_host_without_an_address(two_by_two: Jobs) -> None:
    ended = two_by_two.run(*DOCTOR, "--hosts", "node1:2,node9:2", **agents(two_by_two))
    assert ended.code == 1, ended.out + ended.err
    found = rows(ended)
    assert found["named hosts"][0]["why"].startswith("node9 has no address")
    assert found["ranks"][0]["used"].startswith("not started")


def test_a_host_that_is_cut_off(two_by_two: Jobs) -> None:
    network = two_by_two.network
    network.cut(network.hosts[-1])
    try:
        ended = two_by_two.run(*DOCTOR, "--hosts", "node1:2,node2:2", **agents(two_by_two))
    finally:
        network.mend(network.hosts[-1])
    assert ended.code == 1, ended.out + ended.err
    row = rows(ended)["ranks"][0]
    assert row["level"] == "blocks"
    assert "no report of" in row["why"]
