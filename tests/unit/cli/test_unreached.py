"""Hosts that ssh cannot reach, in the report of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkv.cli.failure_report import report
from ncclkv.cli.launcher_output import LauncherStream
from ncclkv.cli.outcome import Outcome, Rank
from ncclkv.cli.unreached import ask_ssh

HYDRA = "[mpiexec@login] ui_cmd_cb (/mpich/src/pm/hydra/mpiexec/pmiserv_pmci.c:51): Launch failed."
BOX = "A daemon failed to report back after being spawned. This could"

UNKNOWN = "ssh: Could not resolve hostname node2: Name or service not known\r"
CLOSED = "ssh: connect to host node2 port 22: Connection refused"
REFUSED = "root@node2: Permission denied (publickey,password)."
KEY = "Host key verification failed."

OTHER_WAY = "must work without a password here, or set HYDRA_LAUNCHER=slurm (rsh, pbs ...)"


def lines(*words: str, begun: tuple[str, ...] = (), hosts: str = "node1 node2") -> list[str]:
    """Return the report of a job of a rank on each host, whose launcher wrote some lines."""
    ranks = {number: Rank(number, place=name) for number, name in enumerate(hosts.split())}
    for rank in ranks.values():
        rank.pid = 7 * (rank.place in begun)
    return report(Outcome(ranks, 0.1, 255, list(words)), "start 1 of 1").splitlines()


@pytest.mark.parametrize("reason", [UNKNOWN, CLOSED, REFUSED])
def test_the_host_and_the_reason(reason: str) -> None:
    assert lines(reason, HYDRA) == [
        f"ncclkv run: the job failed after 0.1 s (start 1 of 1): node2 cannot be reached: "
        f"{reason.strip()}",
        f"'ssh node2 true' {OTHER_WAY}",
    ]


def test_two_hosts() -> None:
    first, second = lines(CLOSED, REFUSED.replace("node2", "node1"), HYDRA)
    assert ": node2 and node1 cannot be reached: ssh: connect to host node2 port 22" in first
    assert first.endswith("; root@node1: Permission denied (publickey,password).")
    assert second == f"'ssh HOST true' {OTHER_WAY}"


def test_a_reason_that_names_no_host() -> None:
    first, second = lines(KEY, HYDRA)
    assert first.endswith(f": node1 or node2 cannot be reached: {KEY}")
    assert second.startswith("'ssh HOST true' must work")
    first, second = lines(KEY, HYDRA, begun=("node1",))
    assert first.endswith(f": node2 cannot be reached: {KEY}")
    assert second.startswith("'ssh node2 true' must work")
    (first, _) = lines(KEY, HYDRA, hosts="a b c d e")
    assert ": a or b or c or 2 more cannot be reached: " in first


def test_ssh_writes_the_host_in_lower_case() -> None:
    first, second = lines(UNKNOWN, HYDRA, hosts="node1 Node2")
    assert ": Node2 cannot be reached: ssh: Could not resolve hostname node2: " in first
    assert second.startswith("'ssh Node2 true' must work")


def test_open_mpi_has_another_variable() -> None:
    _, second = lines(CLOSED, BOX)
    assert second == (
        "'ssh node2 true' must work without a password here, or set PRTE_MCA_plm_ssh_agent=PROGRAM"
    )


def test_another_failure_of_the_launcher_keeps_its_lines() -> None:
    first, second = lines(HYDRA)
    assert first.endswith(
        "its launcher ended with exit code 255, before any rank began; its output:"
    )
    assert second == HYDRA


def test_a_job_that_ran_is_not_explained_by_ssh() -> None:
    assert "cannot be reached" not in "".join(lines(CLOSED, begun=("node1", "node2")))


def test_the_reason_is_shown_at_once_and_kept() -> None:
    shown, kept = list[str](), list[str]()
    stream = LauncherStream(shown.append, kept.append)
    stream.feed(f"step 1\n{CLOSED}\n{HYDRA}\n".encode())
    stream.end()
    assert shown == ["step 1", CLOSED]
    assert kept == [CLOSED, HYDRA]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return variables that name a program in place of ssh, which refuses and keeps its words."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/asked\necho '{REFUSED}' >&2\nexit 255\n")
    program.chmod(0o755)
    return {"HYDRA_LAUNCHER_EXEC": str(program)}


def failed(*words: str, begun: str = "", hosts: str = "node1 node2") -> Outcome:
    """Return a job whose launcher wrote some lines and ended before the other hosts' ranks."""
    ranks = {number: Rank(number, place=name) for number, name in enumerate(hosts.split())}
    for rank in ranks.values():
        rank.pid = 7 * (rank.place == begun)
    return Outcome(ranks, 0.1, 255, list(words))


def test_ssh_is_asked_where_mpirun_did_not_print_its_reason(
    environment: dict[str, str], tmp_path: Path
) -> None:
    hosts = "node1 localhost node2 node2"  # this machine needs no ssh
    assert ask_ssh(failed(HYDRA, begun="node1", hosts=hosts), environment) == [REFUSED]
    asked = "-oBatchMode=yes -oConnectTimeout=5 -x node2 true\n"
    assert (tmp_path / "asked").read_text() == asked


def test_ssh_is_not_asked_without_need(environment: dict[str, str], tmp_path: Path) -> None:
    assert ask_ssh(failed(HYDRA, CLOSED), environment) == []
    assert ask_ssh(failed(BOX), environment) == []
    assert ask_ssh(failed(HYDRA, hosts="localhost"), environment) == []
    for other in ({"HYDRA_LAUNCHER": "slurm"}, {"HYDRA_BOOTSTRAP": "rsh"}, {"SLURM_JOB_ID": "7"}):
        assert ask_ssh(failed(HYDRA), {**environment, **other}) == []
    assert ask_ssh(failed(HYDRA)._replace(interrupted_by=2), environment) == []
    assert not (tmp_path / "asked").exists()
    assert ask_ssh(failed(HYDRA), {"HYDRA_LAUNCHER_EXEC": str(tmp_path / "none")}) == []
    inside = {**environment, "SLURM_JOB_ID": "7", "HYDRA_LAUNCHER": "ssh"}
    assert ask_ssh(failed(HYDRA), inside) == [REFUSED, REFUSED]
