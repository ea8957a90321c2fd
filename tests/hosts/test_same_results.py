"""Tests of one machine pass on hosts that share nothing, with the same results."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.harness import digits
from tests.harness.source import ROOT
from tests.hosts.lab.jobs import Jobs

RANKS = ROOT / "tests/ranks"
# Cases of a single rank's work, such as checks of arguments, and slow cases of waits.
ON_ONE_RANK = (
    "foreign or mxnet or misuse or introspection or arrays or dtypes or keys or late_ranks"
)
# These tests draw no examples, and the plugin of Hypothesis takes a tenth of a second to import.
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
PYTEST = (sys.executable, "-m", "pytest", "-q", *PLUGINS)


def passes(jobs: Jobs, *arguments: str) -> None:
    """Check that these tests pass on all ranks."""
    ended = jobs.run(*jobs.mpirun, *PYTEST, *arguments, limit=100)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    assert re.search(r"\d+ passed", ended.out), ended.out


@pytest.mark.limit(120)
def test_cases_of_communicators_and_stores(all_hosts: Jobs) -> None:
    files = (f"{RANKS}/test_comm_conformance.py", f"{RANKS}/test_store_cases.py")
    passes(all_hosts, *files, "-k", f"test_mpi or (every_rank and not ({ON_ONE_RANK}))")


def test_train(hosts: Jobs) -> None:
    folder = hosts.network.folder / "digits"
    folder.mkdir()
    digits.copy(folder)
    path = f"{ROOT}{os.pathsep}{folder}"
    ended = hosts.program(ROOT / "train.py", "--epochs", "5", PYTHONPATH=path)
    assert ended.code == 0, ended.err
    assert "weights: bit-identical on all ranks" in ended.out, ended.out


def test_each_rank_is_on_its_host(hosts: Jobs) -> None:
    """Check the reason for host memory, which names the ranks of each host."""
    plan = "import ncclkv; print(ncclkv.create('dist').explain_plan())"
    ended = hosts.run(*hosts.mpirun, sys.executable, "-c", plan)
    assert ended.code == 0, ended.err
    ranks = f"ranks {', '.join(map(str, range(hosts.size)))}"
    names = ", ".join(host.name for host in hosts.network.hosts)
    assert ended.out.count(f"{ranks} ({names})") == hosts.size, ended.out
