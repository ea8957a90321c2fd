"""``ncclkv run``: real jobs, their ends, the reports about them, and no leftovers."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.extent import combinations
from tests.harness.slow import stretched
from tests.jobs.conftest import LIMIT, PROGRAMS, ROOT, Ended
from tests.jobs.started_job import StartedJob, left

SECONDS = stretched(6.0)
"""Seconds from a failure to the end of the job."""

AT_ONCE = stretched(2.5)
"""The same where the other ranks wait in MPI's start, and have nothing to print."""

Run = Callable[..., Ended]
PROGRAM = str(PROGRAMS / "restarts.py")

ENDS = [
    ("SIGKILL", 137, "was killed by SIGKILL (often the kernel's out-of-memory killer"),
    ("SIGSEGV", 139, "was killed by SIGSEGV (a crash in compiled code)"),
    ("3", 3, "ended with exit code 3"),
    ("raise", 1, "failed: ValueError: told to fail"),
]
"""Ends of a rank, each with the exit code of the job and the text of the report."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a case of ``restarts.py``; fail if one of its processes is left."""

    def go(case: str, *options: str, ranks: int = 2) -> Ended:
        command = [sys.executable, PROGRAM, *case.split()]
        ended = StartedJob(tmp_path, *options, "--", *command, ranks=ranks).end()
        assert not left(tmp_path), "processes of the job are left"
        return ended

    return go


@pytest.mark.parametrize("ranks", [1, 3])
def test_output_by_rank(run: Run, ranks: int) -> None:
    ended = run("works", ranks=ranks)
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"[{r}] out of {r}" for r in range(ranks)]
    assert sorted(ended.err.splitlines()) == [f"[{r}] err of {r}" for r in range(ranks)]


def test_no_line_is_torn_or_lost(run: Run) -> None:
    ended = run("chatters", ranks=3)
    assert ended.code == 0, ended.err
    found: dict[int, list[int]] = {rank: [] for rank in range(3)}
    for line in ended.out.splitlines():
        match = re.fullmatch(r"\[(\d)\] \1 (\d+) x* end", line)
        assert match, f"a torn line: {line}"
        found[int(match.group(1))].append(int(match.group(2)))
    assert found == {rank: list(range(3000)) for rank in range(3)}


def test_a_rank_that_is_stopped_and_continued(run: Run) -> None:
    ended = run("goes_on")
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(("end", "where"), combinations(ENDS, ["before", "between"]))
def test_a_rank_that_fails(run: Run, where: str, end: tuple[str, int, str]) -> None:
    way, code, said = end
    ended = run(f"bad_end {where} {way}", ranks=3)
    assert ended.code == code, ended.err
    assert ended.seconds < (AT_ONCE if where == "before" else SECONDS), ended.err
    report = next(line for line in ended.err.splitlines() if ": the job failed after " in line)
    who = r"ncclkv run: .* \(start 1 of at most 1\): rank 1 on \S+ \(pid \d+\) "
    assert re.match(who + re.escape(said), report), report
    first = ended.err.splitlines()[0]
    assert "rank 1 " in first, f"the first line does not name the rank: {first}"
    assert "BAD TERMINATION" not in ended.err + ended.out
    assert "run: restart" not in ended.err


def test_a_rank_that_exits_while_others_wait(run: Run) -> None:
    ended = run("bad_end between exit")
    assert ended.code == 7, ended.err
    assert re.search(
        r"run: the job failed .*: rank 1 on \S+ \(pid \d+\) failed: exit code 7\n", ended.err
    )
    assert "farewell: its process ended without closing the store, by exit code 7" in ended.err


def test_a_rank_that_catches_its_exit(run: Run) -> None:
    ended = run("bad_end between caught")
    assert (ended.code, ended.err) == (0, "")


def test_a_rank_that_is_stopped(run: Run) -> None:
    ended = run("bad_end between SIGSTOP", "--timeout", "3")
    assert ended.code == 1, ended.err
    assert ended.seconds < 3 + SECONDS
    assert re.search(r"\nrank 1 on \S+ \(pid \d+\) was stopped by SIGSTOP [\d.]+ s ", ended.err)


def test_a_hang_of_four_ranks_has_a_short_report(run: Run) -> None:
    ended = run("bad_end between SIGSTOP", "--timeout", "3", ranks=4)
    assert ended.code == 1, ended.err
    lines = ended.err[ended.err.index("ncclkv run: the job failed after ") :].splitlines()
    assert len(lines) <= 25, ended.err
    others = lines[lines.index("errors of the other ranks:") + 1 : -1]
    assert len(others) <= 3, ended.err
    assert not any(" has waited " in line for line in others), ended.err


def test_restarts_from_the_newest_checkpoint(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    ended = run("third_time", "--max-restarts", "3", "--checkpoint", str(saved))
    assert ended.code == 0, ended.err
    assert [line for line in ended.out.splitlines() if line.startswith("[0] start")] == [
        "[0] start 0 finds none",
        "[0] start 1 finds 10",
        "[0] start 2 finds 20",
    ]
    said = [line for line in ended.err.splitlines() if "run: restart " in line]
    assert said == [
        f"ncclkv run: restart 1 of 3, from {saved}/step-000000010-save-000001",
        f"ncclkv run: restart 2 of 3, from {saved}/step-000000020-save-000002",
    ]


def test_a_job_that_crashes_in_a_loop(tmp_path: Path) -> None:
    """A shell fails within the 5 s on a busy machine too, and a Python that imports may not."""
    ended = StartedJob(tmp_path, "--max-restarts", "9", "--", "sh", "-c", "exit 3", ranks=2).end()
    assert ended.code == 3
    assert ended.err.count(": the job failed after ") == 2
    assert "restart 1 of 9, from the beginning: there is no --checkpoint" in ended.err
    last = ended.err.splitlines()[-1]
    assert last == (
        "ncclkv run: no restart: it failed 2 times in a row within 5 s and without a new checkpoint"
    )


def test_a_program_that_refuses_its_arguments(tmp_path: Path) -> None:
    ended = StartedJob(tmp_path, "--max-restarts", "9", "--", "sh", "-c", "exit 2", ranks=2).end()
    assert ended.code == 2
    assert ended.err.count(": the job failed after ") == 1
    assert "exit code 2 means that the program refuses its arguments" in ended.err


@pytest.mark.parametrize(("number", "ranks"), combinations([signal.SIGINT, signal.SIGTERM], [1, 3]))
def test_signals_end_the_job(tmp_path: Path, number: int, ranks: int) -> None:
    arguments = ("--max-restarts", "3", "--", sys.executable, PROGRAM, "waits")
    job = StartedJob(tmp_path, *arguments, ranks=ranks)
    job.wait_for_mark()
    job.process.send_signal(number)
    ended = job.end()
    assert ended.code == 128 + number, ended.err
    assert ended.seconds < SECONDS + 2
    assert "run: restart" not in ended.err
    assert not left(tmp_path)


def test_ranks_that_do_not_end_when_asked_to(tmp_path: Path) -> None:
    job = StartedJob(tmp_path, "--", sys.executable, PROGRAM, "stubborn")
    job.wait_for_mark()
    job.process.terminate()
    ended = job.end()
    assert ended.code == 143, ended.err
    assert 4 < ended.seconds < 5 + SECONDS
    assert not left(tmp_path)


@pytest.mark.parametrize("case", ["waits", "stubborn"])
def test_the_sudden_end_of_the_runner_ends_the_job(tmp_path: Path, case: str) -> None:
    job = StartedJob(tmp_path, "--", sys.executable, PROGRAM, case)
    job.wait_for_mark()
    job.process.kill()
    job.process.communicate()
    limit = time.monotonic() + SECONDS
    while left(tmp_path) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not left(tmp_path)


def test_nobody_reads_what_it_writes(tmp_path: Path) -> None:
    job = StartedJob(tmp_path, "--", sys.executable, PROGRAM, "chatters")
    assert job.process.stdout is not None
    job.process.stdout.close()
    ended = job.process.wait(LIMIT)
    assert job.process.stderr is not None
    err = job.process.stderr.read()
    job.process.stderr.close()
    assert ended == 143, err
    assert "Traceback" not in err
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0", "--", "true"], "-n 0 is no number of ranks; give 1 or more"),
        (["-n", "2"], "give it after --: ncclkv run -n 2 -- python train.py"),
        (["-n", "2", "--", "no-such-program"], "there is no program 'no-such-program'"),
        (["-n", "2", "--", "train.py"], "that can be run; give python train.py"),
        (["--", sys.executable, "-u", "no.py"], "there is no file 'no.py' in "),
        (["--timeout", "0", "--", "true"], "--timeout 0 is not a number of seconds"),
        (["--max-restarts", "-1", "--", "true"], "--max-restarts -1 is below 0"),
    ],
)
def test_what_cannot_be_started(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ncclkv", "run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=stretched(20),
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


HANGS = """
import os
from ncclkv.cli import job
job._LAUNCHER_SECONDS = 0.5
line = ["sh", "-c", '"$@"; exec sleep 60', "sh"]
print(job.Job(job.Start(1, line, {command}, dict(os.environ))).run().code)
"""


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["true"], "0", "the launcher had not ended 0.5 s after its ranks, and was killed"),
        (["false"], "1", "ended with exit code 1"),
    ],
)
def test_a_launcher_that_outlives_its_ranks(command: list[str], code: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS.format(command=command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=stretched(20),
        check=False,
    )
    assert done.stdout == f"{code}\n", done.stderr
    assert said in done.stderr
