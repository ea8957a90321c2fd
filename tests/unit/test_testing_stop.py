"""Ctrl-C in `run_ranks`: real signals to a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.harness.slow import stretched
from tests.harness.source import ROOT

PROGRAM = Path(__file__).parent / "programs" / "stopped_ranks.py"
RANKS = 3

PROMISED = 1.0
"""Seconds from Ctrl-C to the end of `run_ranks`."""

EXIT = 1.0
"""Seconds that the end of Python may take afterwards."""

ENDED = ["waits", "computes", "trains", "suppresses", "makes stores", "runs others", "fails on one"]


@dataclass(frozen=True)
class Stopped:
    """The end of the program after a signal."""

    code: int
    out: str
    err: str
    seconds: float


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process that runs at the end of the block."""
    try:
        yield
    finally:
        process.kill()


class Stop(Protocol):
    """Runs the program, sends it a signal once all ranks are in their work, and awaits its end."""

    def __call__(self, kind: str, number: signal.Signals = signal.SIGINT) -> Stopped: ...


@pytest.fixture
def stop(tmp_path: Path) -> Stop:
    output = tmp_path / "out"

    def run(kind: str, number: signal.Signals = signal.SIGINT) -> Stopped:
        with (
            output.open("w") as file,
            subprocess.Popen(
                [sys.executable, str(PROGRAM), kind],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
            ended(process),
        ):
            end = time.monotonic() + stretched(20.0)
            while output.read_text().count("begins") < RANKS:
                assert process.poll() is None
                assert time.monotonic() < end, output.read_text()
                time.sleep(0.01)
            time.sleep(0.3)  # until ranks that wait for others sleep
            process.send_signal(number)
            begin = time.monotonic()
            _, err = process.communicate(timeout=stretched(20.0))
            return Stopped(process.returncode, output.read_text(), err, time.monotonic() - begin)

    return run


@pytest.mark.parametrize("kind", ENDED)
def test_ctrl_c_ends_all_ranks_within_a_second(stop: Stop, kind: str) -> None:
    stopped = stop(kind)
    assert stopped.seconds < stretched(PROMISED + EXIT), stopped
    assert stopped.code == -signal.SIGINT, stopped
    assert sorted(re.findall("rank . ends", stopped.out)) == [
        f"rank {n} ends" for n in range(RANKS)
    ]
    assert "back; threads: ['MainThread']" in stopped.out
    assert stopped.err.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception in thread" not in stopped.err
    failed = "ZeroDivisionError: mine" in stopped.err and "on rank 1 of 3" in stopped.err
    assert failed == (kind == "fails on one"), stopped.err


def test_the_exception_of_another_signal_handler_ends_them_too(stop: Stop) -> None:
    stopped = stop("computes", signal.SIGALRM)
    assert stopped.seconds < stretched(PROMISED + EXIT), stopped
    assert stopped.code == 1
    assert "back; threads: ['MainThread']" in stopped.out
    assert stopped.err.splitlines()[-1] == "TimeoutError: the program's own"


def test_an_import_of_a_rank_is_not_broken(stop: Stop) -> None:
    stopped = stop("imports")
    assert stopped.code == -signal.SIGINT, stopped
    began, back, ends = map(stopped.out.index, ("import begins", "back;", "import ends"))
    assert began < back < ends
    assert stopped.out.count("import begins") == 1, stopped.out
    assert "still in calls or imports" in stopped.err


def test_ranks_in_a_call_of_c_are_named_and_do_not_keep_the_process(stop: Stop) -> None:
    stopped = stop("sleeps")
    assert stopped.seconds < stretched(PROMISED + EXIT), stopped
    assert "back; threads: ['MainThread', 'rank 0', 'rank 1', 'rank 2']" in stopped.out
    place = r"\(.*stopped_ranks\.py:\d+\)"
    assert re.search(
        rf"still in calls or imports that Python cannot end: rank 0 {place}, 1 {place}, 2 {place}",
        stopped.err.splitlines()[-1],
    ), stopped.err
