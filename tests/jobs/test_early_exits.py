"""Exits of ranks with code 0 at different times under ``ncclkv run``, allowed and not."""

from __future__ import annotations

import re

import pytest

from tests.harness.extent import combinations
from tests.harness.slow import stretched
from tests.jobs.conftest import Job

SECONDS = stretched(6.0)
"""Seconds from a rank's exit to the end of the job."""

LEFT = r"rank 1 on \S+ \(pid \d+\) ended with exit code 0, [\d.]+ s after the start, while "


def headline(err: str) -> str:
    """Return the first line of the report."""
    return next(line for line in err.splitlines() if ": the job failed after " in line)


@pytest.mark.parametrize(("way", "ranks"), combinations(["exit", "exec"], [2, 3]))
def test_a_rank_that_leaves_in_mid_training(job: Job, ranks: int, way: str) -> None:
    ended = job("early_exits.py", "steps", way, ranks=ranks, run=True)
    assert ended.code == 1, ended.err
    assert ended.seconds < SECONDS, ended.err
    others = "rank 0" if ranks == 2 else "ranks 0, 2"
    assert re.search(rf": {LEFT}{others} had not ended$", headline(ended.err)), ended.err
    assert re.search(r"ncclkv: rank 0 of .* failed, ending the job: RankDied: ", ended.err), (
        "the others have time to print what they miss"
    )


@pytest.mark.parametrize(
    ("way", "then", "code"),
    [
        ("17", "exits", 17),
        ("unknown", "exits", 17),
        ("0", "exits", 1),
        ("17", "raises", 17),
        ("0", "raises", 1),
        ("17", "ends at once", 17),
        ("0", "ends at once", 1),
    ],
)
def test_survivors_that_catch_the_error(job: Job, way: str, then: str, code: int) -> None:
    """Check the name and the code of the rank that exited first, whose process may end last."""
    ended = job("early_exits.py", "catches", way, then, ranks=3, run=True)
    assert ended.code == code, ended.err
    who = r"rank 1 on \S+ \(pid \d+\) (ended with|began to exit with|failed:) exit code "
    number = way if code == 1 else code
    assert re.search(rf": {who}{number}\b", headline(ended.err)), ended.err


def test_an_exit_in_a_signal_handler(job: Job) -> None:
    ended = job("early_exits.py", "handles_a_signal", ranks=3, run=True)
    assert ended.code == 1, ended.err
    who = r"rank 0 on \S+ \(pid \d+\) (ended|began to exit) with exit code 0, "
    assert re.search(f": {who}", headline(ended.err)), ended.err
    assert headline(ended.err).endswith(" while ranks 1, 2 had not ended"), ended.err


def test_lines_that_are_no_events(job: Job) -> None:
    ended = job("early_exits.py", "writes_events", ranks=2, run=True)
    assert ended.code == 0, ended.err
    said = (
        r"ncclkv run: rank {} on \S+ \(pid \d+\) wrote to the pipe in NCCLKV_RUN_EVENTS; ignored: "
    )
    lines = sorted(ended.err.splitlines())
    assert len(lines) == 2, ended.err
    assert re.fullmatch(said.format(0) + "'a line without an end, before events'", lines[0])
    assert re.fullmatch(said.format(1) + "'exits abc'", lines[1])


def test_a_supervisor_that_is_killed(job: Job) -> None:
    ended = job("early_exits.py", "loses_its_supervisor", "SIGKILL", ranks=3, run=True)
    assert ended.code == 137, ended.err
    assert ended.seconds < SECONDS, ended.err
    said = r"has lost its supervisor, [\d.]+ s after the start: it was killed, or its connection"
    who = r"rank \d on \S+ \(pid \d+\)"
    found = re.search(rf": ({who}(?: or {who})*) {said}", headline(ended.err))
    # A busy machine may read the ends of all connections at once.
    assert found is not None, ended.err
    assert "rank 1 on" in found[1], ended.err


def test_a_supervisor_that_stays_stopped(job: Job) -> None:
    """Check the end after the timeout, also of ranks that wait for nobody."""
    case = ("early_exits.py", "loses_its_supervisor", "SIGSTOP")
    ended = job(*case, ranks=2, run=True, NCCLKV_TIMEOUT="2")
    assert ended.code == 1, ended.err
    assert 2 < ended.seconds < 2 + SECONDS, ended.err
    said = r"failed: it ended, and its supervisor \(pid \d+\) has been stopped for 2 s and cannot"
    assert re.search(rf": rank 1 on \S+ \(pid \d+\) {said} report how$", headline(ended.err))


@pytest.mark.limit(60)
def test_an_early_exit_before_other_ranks_wait(job: Job) -> None:
    """Check MPICH: it kills the other ranks before any of them can print."""
    ended = job("early_exits.py", "computes", "exit", ranks=3, run=True, limit=stretched(30))
    assert ended.code == 1, ended.err
    assert re.search(rf": {LEFT}ranks 0, 2 had not ended$", headline(ended.err)), ended.err


@pytest.mark.limit(60)
def test_a_rank_may_continue_alone_without_limit(job: Job) -> None:
    """Check the supervisors of the other ranks, which wait at most ten seconds."""
    ended = job("early_exits.py", "evaluates", "12", ranks=2, run=True, limit=stretched(30))
    assert (ended.code, ended.out, ended.err) == (0, "[0] evaluated\n", "")


def test_a_rank_that_does_not_reach_the_start_of_mpi(job: Job) -> None:
    # The ranks that wait keep a core busy each, up to the deadline.
    ended = job("early_exits.py", "before", "sleeps", ranks=3, run=True, NCCLKV_TIMEOUT="1.5")
    assert ended.code == 1, ended.err
    said = r"rank 1 on \S+ \(pid \d+\) did not reach MPI's start, where ranks 0, 2 waited for it"
    assert re.search(rf": {said}$", headline(ended.err)), ended.err


def test_a_rank_that_ends_before_the_start_of_mpi(job: Job) -> None:
    """Check the end without a wait for the deadline of five minutes, or for words of the others."""
    ended = job("early_exits.py", "before", "exits", ranks=2, run=True)
    assert ended.code == 1, ended.err
    assert ended.seconds < stretched(2.5), ended.err
    said = r"did not reach MPI's start, where rank 0 waited for it: it ended with exit code 0"
    assert re.search(rf": rank 1 on \S+ \(pid \d+\) {said}", headline(ended.err)), ended.err
