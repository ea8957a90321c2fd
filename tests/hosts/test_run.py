"""``ncclkv run`` over several hosts: placement, output and ends of ranks on all of them."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.harness.source import ROOT
from tests.hosts.lab.jobs import PROGRAMS, Jobs

pytestmark = pytest.mark.limit(60)

RUN = (sys.executable, "-m", "ncclkv", "run")
LEAVES = str(ROOT / "tests/jobs/programs/early_exits.py")
WRITES = "import socket, sys; print(socket.gethostname()); sys.stderr.write('no end')"
MEETS = """
import os, socket, time
rank, size, local_rank, local_size, host, port = (os.environ[name] for name in (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
if rank == "0":
    with socket.create_server(("", int(port))) as server:
        for _ in range(int(size) - 1):
            server.accept()
while rank != "0":
    try:
        socket.create_connection((host, int(port)))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
print(local_rank, local_size, size, host)
"""
"""Program that uses the variables of torch as torch does."""

SECONDS = stretched(8.0)
"""Seconds from a failure to the end of the job."""


def agents(jobs: Jobs) -> dict[str, str]:
    """Return the variables that give Open MPI the hosts, besides those of MPICH."""
    hosts = jobs.network.folder / "open_mpi_hosts"
    hosts.write_text("".join(f"{h.name} slots={jobs.ranks}\n" for h in jobs.network.hosts))
    return {
        "PRTE_MCA_plm_ssh_agent": str(jobs.network.folder / "agent.sh"),
        "PRTE_MCA_prte_default_hostfile": str(hosts),
    }


def headline(err: str) -> str:
    """Return the first line of the report."""
    return next(line for line in err.splitlines() if ": the job failed after " in line)


@pytest.mark.parametrize("way", ["list", "file", "found"])
def test_ranks_fill_the_slots_of_the_hosts(hosts: Jobs, way: str) -> None:
    names = [host.name for host in hosts.network.hosts]
    where = [*names, names[-1]] if way != "found" else [hosts.host_of(r) for r in range(hosts.size)]
    variables = agents(hosts)
    if way != "found":
        del variables["PRTE_MCA_prte_default_hostfile"]
        variables["HYDRA_HOST_FILE"] = ""
    options = ["-n", str(hosts.size)]
    if way == "list":
        options = ["--hosts", ":1,".join(names) + ":2"]
    if way == "file":
        path = hosts.network.folder / "given"
        path.write_text("".join(f"{n} slots={1 + (n == names[-1])}\n" for n in names))
        options = ["--hostfile", str(path)]
    ended = hosts.run(*RUN, *options, "--", "hostname", **variables)
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"[{rank}] {name}" for rank, name in enumerate(where)]
    assert "\0" not in ended.out + ended.err


def test_output_is_kept_in_a_file_a_rank(hosts: Jobs) -> None:
    folder: Path = hosts.network.folder / "logs"
    options = ("-n", str(hosts.size), "--output-dir", str(folder))
    ended = hosts.run(*RUN, *options, "--", sys.executable, "-c", WRITES, **agents(hosts))
    assert ended.code == 0, ended.err
    for rank in range(hosts.size):
        assert (folder / f"rank-{rank}.out").read_text() == f"{hosts.host_of(rank)}\n"
        assert (folder / f"rank-{rank}.err").read_text() == "no end"


def test_variables_of_torch_lead_to_rank_0(hosts: Jobs) -> None:
    """Check them by connections: rank 0 listens where torch's would, and the others connect."""
    options = ("-n", str(hosts.size), "--torch-env")
    ended = hosts.run(*RUN, *options, "--", sys.executable, "-c", MEETS, **agents(hosts))
    assert ended.code == 0, ended.err
    found = [line.split() for line in sorted(ended.out.splitlines())]
    places = [(str(rank % hosts.ranks), str(hosts.ranks)) for rank in range(hosts.size)]
    ranks = [(f"[{rank}]", *place, str(hosts.size)) for rank, place in enumerate(places)]
    assert [tuple(words[:-1]) for words in found] == ranks
    assert {words[-1] for words in found} == {hosts.host_of(0)}


def test_a_rank_that_leaves_in_mid_training(hosts: Jobs) -> None:
    command = ("-n", str(hosts.size), "--", sys.executable, LEAVES, "steps", "exit")
    ended = hosts.run(*RUN, *command, **agents(hosts), NCCLKV_TIMEOUT="5")
    assert ended.code != 0
    assert ended.seconds < 5 + SECONDS, ended.err
    # MPICH over UCX may crash the survivors by then, and the report may begin with such a crash.
    who = rf"\brank 1 on {hosts.host_of(1)} \(pid \d+\) (had )?ended with exit code 0, "
    assert re.search(who, ended.err), ended.err


@pytest.mark.parametrize(
    ("way", "how"),
    [("kill", "was killed by SIGKILL"), ("raise", "failed: ValueError: told to fail")],
)
def test_a_rank_that_fails_on_the_last_host(hosts: Jobs, way: str, how: str) -> None:
    last = hosts.size - 1
    ended = hosts.program("steps.py", way, str(last), "20", run=True, **agents(hosts))
    assert ended.code != 0
    assert ended.seconds < SECONDS, ended.err
    who = rf": rank {last} on {hosts.host_of(last)} \(pid \d+\) {how}"
    assert re.search(who, headline(ended.err)), ended.err


def test_the_sudden_end_of_the_runner_ends_all_ranks(hosts: Jobs) -> None:
    """`Jobs.run` fails when a process of the job is left on any host."""

    def kill() -> None:
        login = hosts.network.login
        lines = login.run("ps", "-e", "-o", "pid=,args=").splitlines()
        runner = next(line.split()[0] for line in lines if "-m ncclkv run" in line)
        login.run("kill", "-KILL", runner)

    ended = hosts.program("steps.py", "none", "0", "1000000", run=True, fault=kill, **agents(hosts))
    assert ended.code != 0


def test_status_shows_the_ranks_of_all_hosts(hosts: Jobs) -> None:
    shown = ""

    def look() -> None:
        nonlocal shown
        login = hosts.network.login
        try:
            shown = login.run("env", f"PYTHONPATH={ROOT}", *RUN[:-1], "status")
        finally:
            lines = login.run("ps", "-e", "-o", "pid=,args=").splitlines()
            runner = next(line.split()[0] for line in lines if "-m ncclkv run" in line)
            login.run("kill", "-TERM", runner)

    hosts.program("steps.py", "none", "0", "1000000", run=True, fault=look, **agents(hosts))
    _, _, *rows = shown.splitlines()
    assert len(rows) == hosts.size, shown
    for rank, row in enumerate(rows):
        assert re.match(rf" *{rank} +{hosts.host_of(rank)} +\d+ +(runs|waits) +\w+\(", row), shown


def test_a_cut_link(hosts: Jobs) -> None:
    network = hosts.network
    ended = hosts.program(
        *("steps.py", "none", "0", "1000000"),
        run=True,
        fault=lambda: network.cut(network.hosts[-1]),
        **agents(hosts),
        NCCLKV_TIMEOUT="3",
    )
    assert ended.code != 0
    assert ended.seconds < 3 + SECONDS, ended.err
    assert "CommTimeout" in headline(ended.err), ended.err


def test_a_host_that_is_away_at_the_start(hosts: Jobs) -> None:
    """Check that the job waits for the host, and then runs without the use of a restart."""
    network = hosts.network
    last = network.hosts[-1]
    listed = ",".join(f"{host.name}:{hosts.ranks}" for host in network.hosts)
    options = ("--hosts", listed, "--max-restarts", "1")
    program = (sys.executable, str(PROGRAMS / "steps.py"), "none", "0", "20")
    back = threading.Timer(6.0, network.heal)
    network.cut(last)
    back.start()
    try:
        ended = hosts.run(
            *(*RUN, *options, "--", *program),
            **{**agents(hosts), "PRTE_MCA_prte_default_hostfile": "", "HYDRA_HOST_FILE": ""},
            NCCLKV_TIMEOUT="3",
        )
    finally:
        back.join()
    assert ended.code == 0, ended.err
    away = [str(rank) for rank in range(hosts.size) if hosts.host_of(rank) == last.name]
    who = f"rank{'s' * (len(away) > 1)} {', '.join(away)} on {last.name} did not begin"
    assert f"{who}: the same start again in 1 s" in ended.err, ended.err
    assert "run: restart " not in ended.err
