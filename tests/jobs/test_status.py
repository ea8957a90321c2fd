"""``ncclkv status``: the ranks of a running job, as another process sees them."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclkv.cli import status as command
from ncclkv.errors import LaunchError
from tests.harness.slow import stretched
from tests.jobs.conftest import LIMIT, PROGRAMS, ROOT
from tests.jobs.started_job import StartedJob

pytestmark = pytest.mark.limit(60)

NOBODY = 65534


def status(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ncclkv", "status", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.fixture
def job(tmp_path: Path) -> Iterator[StartedJob]:
    started = StartedJob(tmp_path, "--", sys.executable, str(PROGRAMS / "waits.py"), ranks=3)
    try:
        started.wait_for_mark()
        yield started
    finally:
        started.process.send_signal(signal.SIGTERM)
        started.output()


def test_calls_and_waits_of_all_ranks(job: StartedJob) -> None:
    pid = str(job.process.pid)
    limit = time.monotonic() + stretched(10)
    found = status(pid)
    while "ranks 1, 2" not in found.stdout and time.monotonic() < limit:
        found = status(pid)
    assert found.returncode == 0, found.stderr
    title, names, *rows = found.stdout.splitlines()
    assert re.fullmatch(rf"job of ncclkv run \(pid {pid}\), for \d+\.\d s on 3 ranks", title)
    assert names.split() == ["rank", "host", "pid", "state", "last", "call", "ago", "waits", "for"]
    waits, sleeps, stopped = rows
    host = re.escape(os.uname().nodename)
    program = r"tests/jobs/programs/waits\.py"
    assert re.search(rf"0 +{host} +\d+ +waits +barrier\(\) at .*{program}:26 +\d+\.\d s +", waits)
    assert waits.endswith("ranks 1, 2")
    assert re.search(rf"1 +{host} +\d+ +runs +pull\('w'\) at .*{program}:19 +\d+\.\d s$", sleeps)
    assert re.search(rf"2 +{host} +\d+ +stopped by SIGSTOP +pull\('w'\) at", stopped)
    assert max(map(len, rows)) < 160


def test_several_jobs_must_be_named(job: StartedJob, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    sleeps = f"import os, time; open({str(folder / 'mark')!r}, 'w'); time.sleep(300)"
    other = StartedJob(folder, "--", sys.executable, "-c", sleeps, ranks=1)
    try:
        other.wait_for_mark()
        found = status()
        assert found.returncode == 2
        assert "several jobs of ncclkv run are here; type one of: ncclkv status " in found.stderr
        assert f"ncclkv status {other.process.pid} (-n 1 " in found.stderr
        alone = status(str(other.process.pid))
        assert re.search(r"runs +no call of a store of several ranks", alone.stdout), alone
    finally:
        other.process.send_signal(signal.SIGTERM)
        other.output()


def test_a_signal_makes_all_ranks_print_their_stacks(tmp_path: Path) -> None:
    program = (
        "import os, time, ncclkv\n"
        "with ncclkv.create('dist') as kv:\n"
        "    kv.barrier()\n"
        "    open(os.environ['MARK'], 'w')\n"
        "    time.sleep(2)\n"
    )
    job = StartedJob(tmp_path, "--", sys.executable, "-c", program)
    job.wait_for_mark()
    job.process.send_signal(signal.SIGUSR2)
    _, err = job.output()
    assert job.process.returncode == 0, err
    for rank in (0, 1):
        assert re.search(rf"^\[{rank}\] .*\(most recent call first\)", err, re.MULTILINE), err


def test_another_user_gets_no_answer(job: StartedJob) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    assert job.process.pid in command.runners()
    os.seteuid(NOBODY)
    try:
        assert job.process.pid not in command.runners(), "it must not be in the way of own jobs"
        with pytest.raises(LaunchError, match=r"no ncclkv run of process \d+ of this user"):
            command.main(argparse.Namespace(pid=job.process.pid))
        with pytest.raises(LaunchError, match="gives no answer"):
            command._answer(job.process.pid)
    finally:
        os.seteuid(0)


def test_a_process_that_is_no_runner() -> None:
    found = status("1")
    assert found.returncode == 2
    assert found.stderr.startswith("ncclkv: no ncclkv run of process 1 of this user runs")
