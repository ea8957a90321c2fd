"""The harness itself: real jobs of 3 ranks over the files in `samples`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path("tests/harness/samples")
# The plugin of Hypothesis takes a tenth of a second to import.
NO_HYPOTHESIS = ("-p", "no:hypothesispytest")

pytestmark = pytest.mark.limit(50)


def job(*samples: str, options: Sequence[str] = (), ranks: int = 3) -> tuple[int, str]:
    """Run samples on several ranks; return the exit code, and all that the job printed."""
    paths = [str(SAMPLES / f"{sample}.py") for sample in samples]
    pytest_options = ["--color=no", *NO_HYPOTHESIS, *options]
    done = subprocess.run(
        ["launch/local.sh", "-n", str(ranks), "-m", "pytest", *pytest_options, *paths],
        cwd=ROOT,
        env={**os.environ, "VENV": sys.prefix},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=40,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def failing() -> tuple[int, str]:
    """Run in one job three samples in each of which a phase fails on some ranks."""
    return job("fails_on_one_rank", "setup_fails_on_one_rank", "skips_on_one_rank")


def test_passing_ranks_report_once(tmp_path):
    code, text = job("all_pass", options=[f"--junitxml={tmp_path}/report.xml"])
    assert code == 0, text
    assert text.count("1 passed, 1 skipped, 1 xfailed") == 1, text
    assert text.count("test session starts") == 1, text
    assert (tmp_path / "report.xml").read_text().count("<testsuite ") == 1
    assert text.count("report.xml") == 1, text


def test_one_rank_needs_no_launcher():
    command = [sys.executable, "-m", "pytest", *NO_HYPOTHESIS, str(SAMPLES / "all_pass.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout


def test_failure_on_one_rank_is_the_failure_of_all(failing):
    code, text = failing
    assert code == 1, text
    assert "rank 1 of 3: failed" in text
    assert "AssertionError: this rank is not like the others" in text
    assert "printed by rank 1" in text
    assert "warned by rank 1" in text
    assert "rank 0, 2 of 3: passed" in text
    # One of each sample fails, and a test passes after the failure of the first and of the second.
    assert "2 failed, 2 passed, 2 errors" in text, "the next test must run all the same"


def test_first_failure_ends_the_run_of_all_ranks():
    code, text = job("fails_on_one_rank", options=["-x"])
    assert code == 1, text
    assert "1 failed in" in text, text


def test_failures_in_setup_and_teardown_are_those_of_all(failing):
    code, text = failing
    assert code == 1, text
    assert "rank 2 of 3: failed" in text
    assert "ValueError: no value here" in text
    assert "rank 1 of 3: failed" in text
    assert "ValueError: cannot give it back" in text
    assert " passed, 2 errors" in text


def test_skip_on_one_rank_alone_is_a_failure(failing):
    code, text = failing
    assert code == 1, text
    assert "rank 1 of 3: skipped\n" in text
    assert "not here" in text
    assert "2 failed" in text


def test_rank_that_leaves_a_collective_is_named_and_ends_the_job():
    code, text = job("leaves_a_collective")
    assert code == 1, text
    assert "rank 1 of 3: done here, waiting for rank 0, 2" in text
    assert "rank 1 of 3: E           ValueError: left early" in text


def test_deadlock_ends_at_the_limit_with_the_stack_of_the_stuck_rank():
    begin = time.monotonic()
    code, text = job("deadlocks")
    # All ranks exit with 1; mpirun kills those that do so later than the first.
    assert code in (1, signal.SIGKILL), text
    assert time.monotonic() - begin < 20
    assert "rank 1 of 3: tests/harness/samples/deadlocks.py::test_one_rank_waits_for_ever" in text
    assert "past the limit of 1 s, and still busy" in text
    assert 'deadlocks.py", line 11 in test_one_rank_waits_for_ever' in text
    assert "rank 0 of 3: " in text
    assert "past the limit of 1 s, and done here, waiting for rank 1" in text


def test_killed_rank_ends_the_job():
    code, text = job("dies")
    assert code != 0, text


def test_ranks_must_collect_the_same_tests():
    code, text = job("collects_differently")
    assert code == 1, text
    assert "rank 2 of 3 collected other tests than rank 0" in text
    assert "test_number[2]" in text


def test_module_that_breaks_on_one_rank_is_shown():
    code, text = job("breaks_on_import")
    assert code == 1, text
    assert "rank 1 of 3 collected other tests than rank 0" in text
    assert "ImportError: nothing to import on this rank" in text


def test_launcher_and_library_must_be_of_the_same_mpi():
    """Check another MPI's launcher: it starts single processes, each of which passes alone."""
    command = [sys.executable, "-m", "pytest", *NO_HYPOTHESIS, str(SAMPLES / "all_pass.py")]
    library = subprocess.check_output([sys.executable, "-m", "mpi4py", "--mpi-lib-version"])
    mpich, open_mpi = {"PMI_SIZE": "4", "HYDI_CONTROL_FD": "3"}, {"OMPI_COMM_WORLD_SIZE": "4"}
    other = mpich if b"Open MPI" in library else open_mpi
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **other},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    assert "from a different MPI implementation" in done.stderr
