"""The end of jobs whose stores are closed, dropped, broken or forked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.jobs.conftest import PROGRAMS, ROOT, Job

SECONDS = stretched(5.0)


@pytest.mark.parametrize(
    "name", ["close_twice", "close_forgotten", "several_forgotten", "exits_in_a_thread"]
)
def test_a_job_that_ends_well(job: Job, name: str) -> None:
    ended = job("store_lifetimes.py", name, ranks=2)
    assert (ended.code, ended.err) == (0, "")


def test_an_exception_caught_outside_the_store(job: Job) -> None:
    ended = job("store_lifetimes.py", "caught_outside", ranks=3)
    assert (ended.code, ended.err) == (0, "")
    assert ended.seconds < SECONDS
    lines = sorted(ended.out.splitlines())
    assert lines[1] == "rank 1 goes on after ValueError: not today"
    for rank in 0, 2:
        # A slow rank may first receive the farewell of a rank that left because it had lost rank 1.
        assert lines[rank].startswith(f"rank {rank} goes on after RankLost: rank {rank} of 3: ")
        assert ": rank 1 left while " in lines[rank], ended.out
        assert "farewell: ValueError: not today; rank 1 on " in lines[rank]
        assert " last called " in lines[rank]


def test_mpi_that_ends_before_the_stores(job: Job) -> None:
    ended = job("store_lifetimes.py", "finalizes_before_closing", ranks=2)
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == [
        f"rank {rank} of 2: MPI was finalized while the store was open; close stores before "
        "MPI.Finalize()"
        for rank in range(2)
    ]


def test_a_rank_that_ends_early(job: Job) -> None:
    ended = job("store_lifetimes.py", "ends_early", ranks=3)
    assert ended.code != 0
    assert ended.seconds < SECONDS
    assert ": rank 1 left while a reduction" in ended.words[0]
    assert "(key 'w')" in ended.words[0]
    assert "farewell: its process ended without closing the store" in ended.words[0]
    # Ranks that fail as a consequence write one line.
    assert " failed, ending the job: RankLost: " in ended.words[0]
    assert "Traceback" not in ended.err, ended.err


def test_one_wrong_call_is_reported_in_few_lines(job: Job) -> None:
    ended = job("store_lifetimes.py", "other_order", ranks=3)
    assert ended.code != 0
    blocks = re.split(r"^(?=ncclkv: rank )", ended.err, flags=re.MULTILINE)[1:]
    assert blocks, ended.err
    assert "/ncclkv/comm/" not in ended.err, f"frames of the package:\n{ended.err}"
    relayed = [block for block in blocks if re.search(r"OrderMismatch: .* rank \d found: ", block)]
    assert len(relayed) < len(blocks)
    for block in relayed:
        assert "Traceback" not in block, "another rank shows it"
    for block in blocks:
        if block in relayed:
            continue
        first, header, hint, *frames, last = re.sub(r"\nAbort\(.*|\n$", "", block).splitlines()
        assert " failed, ending the job: OrderMismatch: rank " in first, first
        assert (header, hint[:10]) == ("Traceback (most recent call last):", "  (without")
        assert len(frames) <= 8, block
        assert last == f"ncclkv.errors.{first.partition(' the job: ')[2]}", block


def test_all_frames_of_one_wrong_call_on_request(job: Job) -> None:
    ended = job("store_lifetimes.py", "other_order", ranks=3, NCCLKV_TRACEBACK="full")
    assert ended.code != 0
    assert "/ncclkv/comm/" in ended.err


@pytest.mark.parametrize(
    ("name", "rank", "reason"),
    [
        ("fails_in_a_thread", 2, "ValueError: in a thread"),
        ("fails_while_others_compute", 2, "ValueError: while others compute"),
        ("prints_to_nobody", 1, "ValueError: with standard output closed"),
    ],
)
def test_a_failure_elsewhere(job: Job, name: str, rank: int, reason: str) -> None:
    ended = job("store_lifetimes.py", name, ranks=3)
    assert ended.code != 0
    assert ended.seconds < SECONDS
    assert ended.err.startswith(f"ncclkv: rank {rank} of 3 on "), ended.err
    assert ended.words[0].endswith(f"failed, ending the job: {reason}")
    assert reason in ended.err


def test_a_forked_child_that_fails_ends_alone(job: Job) -> None:
    ended = job("store_lifetimes.py", "forked_child_fails", ranks=2)
    assert ended.code == 0, ended.err
    assert "ValueError: in a forked child" in ended.err
    assert not ended.words, "a child is no rank"


def test_ctrl_c_at_the_launcher(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    process = subprocess.Popen(
        ["launch/local.sh", "-n", "2", str(PROGRAMS / "store_lifetimes.py"), "waits_for_ever"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": str(mark)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    limit = time.monotonic() + stretched(15)
    while not mark.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    assert mark.exists(), "the job never got to its wait"
    # A terminal does the same: the signal goes to mpirun and to its process group.
    os.killpg(process.pid, signal.SIGINT)
    begin = time.monotonic()
    try:
        process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode != 0
    assert time.monotonic() - begin < SECONDS
