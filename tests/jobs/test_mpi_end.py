"""The end of MPI: no rank waits for ever, and late ranks are named."""

from __future__ import annotations

import re

import pytest

from tests.harness.extent import combinations
from tests.jobs.conftest import Ended, Job

SECONDS = 6.0
"""Seconds from the failure to the end of the job, beyond the deadline."""

CODE = 5
"""Exit code of ranks that catch an error."""


def late_line(ended: Ended, which: str) -> str:
    """Return the first line that names the late rank."""
    found = re.findall(
        r"^(?:\[\d\] )?(ncclkv: .* has waited .* at the end of .*)$", ended.err, re.MULTILINE
    )
    assert found, ended.err
    who = (
        rf"ncclkv: rank 0 of 3 on \S+ \(pid \d+\) has waited 1 s .* for {which} on \S+ \(pid \d+\)"
    )
    assert re.match(who, found[0]), found[0]
    return str(found[0])


@pytest.mark.parametrize(
    ("import_of_mpi", "run", "code"),
    [
        pytest.param("", False, CODE, id="mpirun"),
        pytest.param("", True, CODE, id="run"),
        pytest.param("first", False, CODE, id="mpirun-mpi4py-first"),
        # MPI_Abort ends the process, and mpirun then ends the one that reports to the runner.
        pytest.param("first", True, None, id="run-mpi4py-first"),
    ],
)
def test_an_error_is_caught_while_a_rank_is_stopped(
    job: Job, import_of_mpi: str, run: bool, code: int | None
) -> None:
    ended = job(
        "mpi_end.py", "exits", import_of_mpi, ranks=3, run=run, limit=30, NCCLKV_TIMEOUT="3"
    )
    assert ended.out.count("catches CommTimeout") == 2, ended.out
    assert ended.code in ([code] if code else [1, CODE]), ended.err
    assert ended.seconds < 3 + SECONDS
    said = re.findall(r"ncclkv: rank (\d) of 3 .* failed, ending the job: CommTimeout", ended.err)
    assert {"0", "1"} <= set(said), "each rank that gives up says why"


def test_an_exit_code_that_is_raised(job: Job) -> None:
    ended = job("mpi_end.py", "raises", ranks=2, run=True, limit=30, NCCLKV_TIMEOUT="3")
    assert ended.code == CODE, ended.err
    assert ended.seconds < 3 + SECONDS


def test_an_end_of_mpi_by_the_program_after_a_failure(job: Job) -> None:
    ended = job("mpi_end.py", "finalizes", ranks=3, NCCLKV_TIMEOUT="2")
    assert ended.code == 1, ended.err
    assert ended.seconds < 2 + SECONDS
    assert any("failed, ending the job: CommTimeout" in line for line in ended.words), ended.err
    assert "came back" not in ended.out


@pytest.mark.parametrize(
    ("case", "shown"),
    [("thread", "in _shutdown"), ("hook", "in never_ends"), ("stops", "which is stopped")],
)
def test_a_rank_that_never_ends(job: Job, case: str, shown: str) -> None:
    limits = {"NCCLKV_TIMEOUT": "1", "NCCLKV_EXIT_TIMEOUT": "2.5"}
    ended = job("mpi_end.py", case, ranks=3, **limits)
    assert ended.code != 0
    assert 2 < ended.seconds < 2.5 + SECONDS, ended.seconds
    assert "NCCLKV_EXIT_TIMEOUT=SECONDS" in late_line(ended, "rank 1")
    assert shown in ended.err, f"not where rank 1 is:\n{ended.err}"
    assert re.search(r" has waited 2 s at the end of the job for rank 1 ", ended.err)
    last = [line for line in ended.words if " failed, ending the job: " in line]
    assert re.search(r"waited 2\.\d s \(NCCLKV_EXIT_TIMEOUT=2\.5\) .* for rank 1 on ", last[0])


@pytest.mark.parametrize(
    ("case", "import_of_mpi"), combinations(["late", "recovers"], ["", "first"])
)
def test_a_rank_that_is_only_late_is_named_and_waited_for(
    job: Job, case: str, import_of_mpi: str
) -> None:
    ended = job("mpi_end.py", case, import_of_mpi, ranks=3, NCCLKV_TIMEOUT="1")
    assert ended.code == 0, ended.err
    assert ended.out.count("ends well") == 3
    late_line(ended, "rank 1")
    assert "failed, ending the job" not in ended.err


def test_an_exit_code_on_one_rank_gives_the_others_time(job: Job) -> None:
    ended = job("mpi_end.py", "exits_late", ranks=3)
    assert (ended.code, ended.err) == (CODE, "")
    assert ended.out.count("ends well") == 2


def test_a_rank_that_is_gone_after_its_close(job: Job) -> None:
    ended = job("mpi_end.py", "gone", ranks=3, run=True)
    assert ended.code == CODE, ended.err
    assert ended.seconds < SECONDS
    died = r"RankDied: rank 1 on \S+ \(pid \d+\) has ended, and other ranks wait for its arrival"
    assert re.search(died, ended.err)


def test_a_wrong_exit_timeout_is_refused(job: Job) -> None:
    ended = job("mpi_end.py", "late", ranks=2, NCCLKV_EXIT_TIMEOUT="soon")
    assert ended.code != 0
    assert "NCCLKV_EXIT_TIMEOUT='soon' is not a number of seconds; set one above 0" in ended.err
