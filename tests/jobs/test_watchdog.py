"""Calls during which Python cannot run: the job ends, with rank, call and stacks."""

from __future__ import annotations

import re

import pytest

from tests.harness.slow import stretched
from tests.jobs.conftest import Job

SECONDS = 1.5
"""Deadline of a job in which a rank waits inside MPI, and keeps a core busy."""

END = SECONDS + stretched(5.0)


@pytest.mark.parametrize(
    ("where", "what", "stack"),
    [
        ("before", "starting MPI took more than 1.5 s", "in before"),
        ("between", "making an MPI communicator or window took more than 1.5 s", "in between"),
    ],
)
def test_a_rank_that_never_comes(job: Job, where: str, what: str, stack: str) -> None:
    ended = job("late_rank.py", where, ranks=2, NCCLKV_TIMEOUT=str(SECONDS))
    assert ended.code != 0, ended.err
    assert SECONDS - 1 < ended.seconds < END, ended.err
    first = ended.words[0]
    assert re.match(rf"ncclkv: rank 0 of 2 on \S+ \(pid \d+\) failed, .*: {what};", first), (
        ended.err
    )
    # not at the start of a line: several ranks write at once
    assert "most recent call first" in ended.err
    assert stack in ended.err


def test_a_call_that_keeps_the_lock(job: Job) -> None:
    ended = job("late_rank.py", "locked", ranks=2)
    assert ended.code != 0, ended.err
    assert ended.seconds < 3.5, ended.err
    assert ended.words[0].startswith("ncclkv: rank 1 of 2 on ")
    assert "a long call took more than 1.5 s" in ended.words[0]
    assert re.search(r'late_rank\.py", line \d+ in sleep', ended.err), ended.err


def test_one_of_many_calls(job: Job) -> None:
    ended = job("late_rank.py", "again", ranks=2)
    assert ended.code != 0, ended.err
    assert "rank 1 of 2" in ended.words[0]
    assert "one of many calls took more than 1.5 s" in ended.words[0]


def test_it_is_off_where_failures_do_not_end_the_job(job: Job) -> None:
    ended = job("late_rank.py", "locked", ranks=2, NCCLKV_ABORT="0")
    assert (ended.code, ended.err) == (0, "")


def test_calls_that_return_in_time(job: Job) -> None:
    ended = job("late_rank.py", "in_time", ranks=2)
    assert (ended.code, ended.err) == (0, "")
