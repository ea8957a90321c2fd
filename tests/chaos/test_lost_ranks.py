"""Ranks lost on any rank and at any time: the job ends soon, with rank and reason."""

from __future__ import annotations

import re
import socket

import pytest

from tests.harness.extent import combinations, some_or_all
from tests.harness.job import Ended, Job
from tests.harness.slow import stretched

SECONDS = stretched(15.0)
"""Seconds from the loss to the end of the job."""

TIMEOUT, SLACK = 3.0, stretched(3.0)
"""Deadline of a job in which a rank stops, and seconds after it until the job must have ended."""

START = 1.0
"""Deadline of a job that waits for MPI's start, in which the ranks keep a core busy each."""

FIRST = 12
"""Number of first lines of each stream that the test reads."""

PLAIN: dict[str, str] = {}
MESSAGES = {"NCCLKV_NODE_MEMORY": "messages"}
NODES = {"NCCLKV_RANKS_PER_NODE": "2"}

JOBS = [(2, PLAIN, 1), (3, MESSAGES, 0), (4, NODES, 1)]
"""Ranks, variables, and the rank that is lost."""

FIELDS = ("ranks", "variables", "rank")
two = pytest.mark.parametrize(FIELDS, some_or_all(JOBS[1:], JOBS))
last = pytest.mark.parametrize(FIELDS, some_or_all(JOBS[2:], JOBS))


def failed(ended: Ended, limit: float = SECONDS) -> None:
    """Fail unless the job failed, in time."""
    assert ended.code != 0, ended.err
    assert ended.seconds < limit, f"{ended.seconds:.1f} s\n{ended.err}"


def named(ended: Ended, rank: int, reason: str) -> None:
    """Fail unless rank, host and reason are in the first lines."""
    lines = [*ended.err.splitlines()[:FIRST], *ended.out.splitlines()[:FIRST]]
    first = "\n".join(lines)
    assert re.search(rf"\brank {rank}\b", first, re.IGNORECASE), f"no rank {rank}:\n{first}"
    assert socket.gethostname() in first, f"no host:\n{first}"
    assert re.search(reason, first), f"no {reason}:\n{first}"


@pytest.mark.parametrize(("place", "lost"), combinations(["before", "during", "after"], JOBS))
def test_a_rank_that_is_killed_ends_the_job(
    job: Job, place: str, lost: tuple[int, dict[str, str], int]
) -> None:
    ranks, variables, rank = lost
    ended = job("lost_ranks.py", place, "kill", str(rank), ranks=ranks, **variables)
    failed(ended)
    assert "ends well" not in ended.out


@last
def test_a_process_that_vanished_ends_the_job(
    job: Job, ranks: int, variables: dict[str, str], rank: int
) -> None:
    ended = job("lost_ranks.py", "before", "os-exit", str(rank), ranks=ranks, **variables)
    failed(ended)
    assert "ends well" not in ended.out


@pytest.mark.parametrize(
    ("lost", "end"),
    combinations(
        JOBS, [("kill", "was killed by SIGKILL", 137), ("os-exit", "ended with exit code 3", 3)]
    ),
)
def test_ncclkv_run_names_a_rank_that_vanished(
    job: Job, lost: tuple[int, dict[str, str], int], end: tuple[str, str, int]
) -> None:
    """Check a killed rank: mpirun itself kills all ranks, before any of them can print."""
    (ranks, variables, rank), (way, reason, code) = lost, end
    ended = job("lost_ranks.py", "during", way, str(rank), ranks=ranks, run=True, **variables)
    failed(ended)
    assert ended.code == code, ended.err
    named(ended, rank, reason)
    assert re.match(rf"ncclkv run: rank {rank} on \S+ \(pid \d+\) {reason}", ended.err), ended.err


def test_neighbours_report_the_death_of_a_rank(job: Job) -> None:
    ended = job("lost_ranks.py", "during", "kill", "1", ranks=3, run=True)
    raised = [line for line in ended.out.splitlines() if " raises " in line]
    assert len(raised) == 2, ended.out
    for line in raised:
        assert "raises RankDied: " in line, line
        assert re.search(r"rank 1 .* \(key 'large'\) waited for it", line), line
        assert re.search(r"rank 1 on \S+ \(pid \d+\) last called pu\w+\('large'\) at ", line), line


def test_ranks_without_shared_memory_name_the_killed_rank(job: Job) -> None:
    """Check the order of reports: MPI's own may follow ours, and never comes first."""
    ended = job("lost_ranks.py", "during", "kill", "1", ranks=3, run=True, **MESSAGES)
    raised = [line for line in ended.out.splitlines() if " raises " in line]
    assert len(raised) == 2, ended.out
    for line in raised:
        assert re.match(r"(\[\d\] )?rank \d raises RankDied: rank \d of 3: rank 1 ", line), line
    named(ended, 1, "was killed by SIGKILL")


@pytest.mark.parametrize(
    ("ranks", "variables", "rank", "place"),
    [
        pytest.param(2, PLAIN, 1, "before", id="2-before"),
        pytest.param(3, MESSAGES, 0, "during", id="3-messages-during"),
        pytest.param(4, NODES, 1, "during", id="4-on-2-nodes-during"),
    ],
)
def test_a_stopped_rank_is_named_after_the_deadline(
    job: Job, place: str, ranks: int, variables: dict[str, str], rank: int
) -> None:
    limit = {"NCCLKV_TIMEOUT": f"{TIMEOUT:g}"}
    ended = job("lost_ranks.py", place, "stop", str(rank), ranks=ranks, **limit, **variables)
    failed(ended, TIMEOUT + SLACK)
    assert ended.seconds > TIMEOUT, "no rank may be given up before its deadline"
    named(ended, rank, "CommTimeout")
    raised = [line for line in ended.out.splitlines() if " raises " in line]
    assert len(raised) == ranks - 1, ended.out
    for line in raised:
        assert "CommTimeout: " in line, line
        assert f"(timeout {TIMEOUT:g} s)" in line, line


@pytest.mark.parametrize(FIELDS, [JOBS[0], JOBS[2]])
def test_every_rank_names_the_last_call_of_a_stopped_rank(
    job: Job, ranks: int, variables: dict[str, str], rank: int
) -> None:
    limit = {"NCCLKV_TIMEOUT": f"{TIMEOUT:g}"}
    ended = job("lost_ranks.py", "before", "stop", str(rank), ranks=ranks, **limit, **variables)
    raised = [line for line in ended.out.splitlines() if " raises " in line]
    assert len(raised) == ranks - 1, ended.out
    last = re.compile(
        rf"waited 3\.\d s .*; rank {rank} on \S+ \(pid \d+\) last called "
        r"pull\('w'\) at \S*lost_ranks\.py:\d+, (\d+\.\d) s ago"
    )
    for line in raised:
        found = last.search(line)
        assert found, line
        assert 2.5 < float(found[1]) < 4, line
        # On the other node a rank may wait for a neighbour of the stopped rank.
        assert f") for rank {rank}; " in line or f" waits for rank {rank}" in line, line
    early = [line for line in ended.words if " has waited " in line]
    assert len(early) <= 4 * (1 + ("NCCLKV_RANKS_PER_NODE" in variables)), "one rank a node"
    stopped = (
        rf"waits for rank {rank}; rank {rank} on \S+ \(pid \d+\) last called .*, and is stopped"
    )
    assert any(re.search(rf" has waited 0\.\d s .* {stopped}", line) for line in early), ended.err


def test_the_last_rank_in_a_chain_of_waits_is_named(job: Job) -> None:
    """Check a chain: rank 2 waits for rank 3, and the other node's ranks for one or both."""
    limit = {"NCCLKV_TIMEOUT": f"{TIMEOUT:g}"}
    ended = job("lost_ranks.py", "during", "stop", "3", ranks=4, **limit, **NODES)
    raised = [line for line in ended.out.splitlines() if " raises " in line]
    assert len(raised) == 3, ended.out
    for line in raised:
        assert (
            "; all ranks must make the same calls in the same order: look at what rank 3 did"
            in (line)
        ), line
        assert re.search(r"; rank 3 on \S+ \(pid \d+\) last called [^;]*, and is stopped", line), (
            line
        )


def test_a_node_that_does_not_answer_is_named(job: Job) -> None:
    limit = {"NCCLKV_TIMEOUT": f"{TIMEOUT:g}"}
    ended = job("lost_ranks.py", "before", "stop", "2,3", ranks=4, **limit, **NODES)
    failed(ended, TIMEOUT + SLACK)
    raised = [line for line in ended.out.splitlines() if " raises " in line]
    assert len(raised) == 2, ended.out
    host = socket.gethostname()
    for line in raised:
        assert (
            f"; no rank of {host} (2, 3) answers: the host or the link to it is gone, or all its "
            f"ranks are stopped"
        ) in line, line
        assert "make the same calls" not in line, line


@two
def test_an_exception_in_an_updater(
    job: Job, ranks: int, variables: dict[str, str], rank: int
) -> None:
    ended = job("lost_ranks.py", "updater", "raise", str(rank), ranks=ranks, **variables)
    failed(ended)
    named(ended, rank, "ValueError: told to fail updater")
    assert ended.words[0].startswith(f"ncclkv: rank {rank} of {ranks} on "), ended.err
    assert f"in the updater, at key 'w' on rank {rank}" in ended.err


@two
def test_an_exception_before_create(
    job: Job, ranks: int, variables: dict[str, str], rank: int
) -> None:
    ended = job("lost_ranks.py", "before-create", "raise", str(rank), ranks=ranks, **variables)
    failed(ended)
    named(ended, rank, "ValueError: told to fail before-create")


@pytest.mark.parametrize("way", ["exit", "os-exit", "kill"])
def test_an_end_before_create(job: Job, way: str) -> None:
    ended = job("lost_ranks.py", "before-create", way, "1", ranks=2, NCCLKV_TIMEOUT=f"{START:g}")
    failed(ended)


def test_a_stop_before_create(job: Job) -> None:
    ended = job("lost_ranks.py", "before-create", "stop", "1", ranks=2, NCCLKV_TIMEOUT=f"{START:g}")
    failed(ended, START + SLACK)


@two
def test_an_exit_in_the_middle(job: Job, ranks: int, variables: dict[str, str], rank: int) -> None:
    ended = job("lost_ranks.py", "before", "exit", str(rank), ranks=ranks, **variables)
    failed(ended)
    named(ended, rank, "RankLost: .* its process ended without closing the store")


def test_an_exit_without_close_at_the_end_harms_no_rank(job: Job) -> None:
    ended = job("lost_ranks.py", "at-the-end", "exit", "1", ranks=3)
    assert (ended.code, ended.err) == (3, ""), "the code is the rank's own"
    assert sorted(ended.out.splitlines()) == ["rank 0 ends well", "rank 2 ends well"]


@pytest.mark.parametrize("way", ["fork-exit", "fork-os-exit", "fork-kill"])
def test_a_forked_child_that_ends_harms_no_rank(job: Job, way: str) -> None:
    ended = job("lost_ranks.py", "before", way, "1", ranks=3)
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == [f"rank {rank} ends well" for rank in range(3)]
    assert ended.seconds < 5


@pytest.mark.parametrize("way", ["raise", "exit"])
def test_several_ranks_that_are_lost_at_once(job: Job, way: str) -> None:
    ended = job("lost_ranks.py", "before", way, "0,2", ranks=4)
    failed(ended)
    assert re.search(r"rank [02] ", ended.words[0]), ended.err
