"""Layer 0: real ranks, by MPI, whose NCCL and CUDA are functions that only wait."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="these tests need CuPy: pip install 'ncclkv[cuda12]'")

from tests.harness.job import Job, job
from tests.harness.slow import stretched

__all__ = ["job"]

pytestmark = pytest.mark.limit(40)

TIMEOUT = 3.0
SOON = stretched(6.0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("killed", "RankDied: rank 0 of 2: rank 1 ended while a reduction of 16 bytes"),
        ("leaves", "RankLost: rank 0 of 2: rank 1 left while a reduction of 16 bytes"),
        ("sleeps", "CommTimeout: rank 0 of 2: a reduction of 16 bytes to all ranks waited 3."),
    ],
)
def test_a_wait_of_cupys_is_ended_and_the_next_call_raises(
    job: Job, fault: str, words: str
) -> None:
    ended = job("watched.py", fault, ranks=2, run=True, NCCLKV_TIMEOUT=str(TIMEOUT))
    assert ended.code != 0, ended.err
    assert f"rank 0 is told: {words}" in ended.out, f"{ended.out}\n{ended.err}"
    assert ended.seconds < TIMEOUT + SOON


def test_communicators_that_timed_out_keep_no_descriptors(job: Job) -> None:
    ended = job("timed_out.py", ranks=2)
    assert ended.code == 0, ended.err
    _, first, *later = ended.out.partition("counts:")[2].splitlines()
    # The first communicator starts MPI and what stays open.
    assert len(later) == 3
    assert set(later) == {later[0]}, f"descriptors and threads: {[first, *later]}"
