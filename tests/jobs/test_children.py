"""Children of ranks: they cannot create stores of several ranks, and their parents continue."""

from __future__ import annotations

import pytest

from tests.jobs.conftest import Job

RANKS = 2

FORKED = r"was forked from rank {rank}, whose MPI it cannot use; create the store in the rank"
STARTED = r"was started by rank {rank} and is no rank; create the store in the rank alone"
GUARD = 'if __name__ == "__main__":'


@pytest.mark.parametrize("case", ["forked", "forked_from_users_mpi", "forked_before_import"])
def test_a_forked_child_is_refused(job: Job, case: str) -> None:
    ended = job("children.py", case, ranks=RANKS)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert len(lines) == RANKS, ended.out
    for rank in range(RANKS):
        said = FORKED.format(rank=rank)
        assert any(said in line and "a 'local' one here" in line for line in lines), ended.out


def test_a_forked_child_may_have_a_local_store(job: Job) -> None:
    ended = job("children.py", "forked_local", ranks=RANKS)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == ["local sum 10"] * RANKS


@pytest.mark.parametrize("case", ["spawned", "launched"])
def test_a_child_that_is_started_anew_is_refused(job: Job, case: str) -> None:
    ended = job("children.py", case, ranks=RANKS)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert len(lines) == RANKS, ended.out
    for rank in range(RANKS):
        said = STARTED.format(rank=rank)
        assert any(said in line and GUARD in line for line in lines), ended.out


def test_a_child_that_is_started_anew_may_be_alone(job: Job) -> None:
    """Check programs that a rank starts with ``NCCLKV_ALONE=1``, such as the trials of a search."""
    ended = job("children.py", "launched_alone", ranks=RANKS)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == ["0 of 1"] * RANKS
