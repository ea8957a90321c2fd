"""The machines of these tests share what real hosts share, and end with the test run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclkv.comm.backoff import Backoff
from tests.harness.source import ROOT
from tests.hosts.lab import network
from tests.hosts.lab.jobs import Jobs
from tests.hosts.lab.network import LOGIN, Network

MAKE = """
import sys, time
from tests.hosts.lab.network import Network
network = Network(2)
network.__enter__()
print(network.folder, *(m.pid for m in (network.login, *network.hosts)), flush=True)
time.sleep(60)
"""


def test_the_reason_why_no_host_can_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.missing() == "only root can make network namespaces"
    monkeypatch.setenv("PATH", "/nowhere")
    assert network.missing().startswith("no unshare, nsenter, ip, mount, hostname on PATH")


def test_hosts_share_no_names_files_or_processes(two_by_two: Jobs) -> None:
    first, second = two_by_two.network.hosts
    assert first.run("hostname") == "node1\n"
    first.run("touch", "/dev/shm/of-node1", "/tmp/of-node1")
    try:
        assert "of-node1" in first.files("/dev/shm")
        assert "of-node1" not in second.files("/dev/shm") | set(os.listdir("/dev/shm"))
        assert "of-node1" not in second.files("/tmp") | set(os.listdir("/tmp"))
    finally:
        first.run("rm", "/dev/shm/of-node1", "/tmp/of-node1")
    numbers = {pid for pid in first.run("ps", "-e", "-o", "pid=").split() if int(pid) == 1}
    assert numbers == {"1"}, "each host counts its processes from 1"


def test_the_project_and_one_folder_are_seen_by_all(two_by_two: Jobs) -> None:
    machines = two_by_two.network
    (machines.folder / "told").write_text("to all")
    for machine in (machines.login, *machines.hosts):
        assert machine.run("cat", machines.folder / "told") == "to all"
        assert machine.run("cat", ROOT / "setup.cfg") == (ROOT / "setup.cfg").read_text()


def test_a_command_reaches_a_host_without_its_callers_variables(two_by_two: Jobs) -> None:
    machines = two_by_two.network
    agent = machines.folder / "agent.sh"
    line = ("env", "TOLD=nobody", agent, "-x", "node2", 'hostname; echo "$HOME:${TOLD-}"')
    assert machines.login.run(*line) == f"node2\n{os.environ['HOME']}:\n"


def test_this_machines_own_network_is_left_alone(two_by_two: Jobs) -> None:
    devices = set(os.listdir("/sys/class/net"))
    assert not devices & {"node1", "node2", "lab0"}
    seen = two_by_two.network.login.run("ls", "/sys/class/net").split()
    assert sorted(seen) == ["lab0", "lo", "node1", "node2"]
    assert two_by_two.network.hosts[0].run("ls", "/sys/class/net").split() == ["eth0", "lo"]


def test_all_ends_when_the_test_run_is_killed(two_by_two: Jobs) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder, *pids = process.stdout.readline().split()
    assert len(pids) == 3
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    process.stdout.close()
    process.send_signal(signal.SIGKILL)
    process.wait()
    limit = time.monotonic() + 5
    paths = [Path(folder), *(Path(f"/proc/{pid}") for pid in pids)]
    while (left := [path for path in paths if path.exists()]) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not left


def test_two_networks_at_once_are_separate(two_by_two: Jobs) -> None:
    with Network(2) as other:
        assert other.login.name == LOGIN
        other.cut(other.hosts[0])
        up = two_by_two.network.login.run("cat", "/sys/class/net/node1/operstate")
        assert up == "up\n"
        for _ in Backoff(10.0):  # the kernel tells the other end of a cut later
            if other.hosts[0].run("cat", "/sys/class/net/eth0/operstate") != "up\n":
                break
        else:
            pytest.fail("the cut link is still up")
