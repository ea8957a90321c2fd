"""The example that saves on SIGUSR1 and ends on SIGTERM, with signals to one rank alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.slow import stretched
from tests.jobs.conftest import LIMIT, ROOT

EXAMPLE = ROOT / "docs" / "examples" / "signals.py"

pytestmark = pytest.mark.limit(60)


class Started:
    """The example on two ranks."""

    def __init__(self, directory: Path, output: Path, *launcher: str) -> None:
        self.directory = directory
        self._output = output
        with output.open("w") as file:
            self.process = subprocess.Popen(
                [*(launcher or ("launch/local.sh", "-n", "2")), str(EXAMPLE), str(directory)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def ranks(self) -> dict[int, tuple[int, int]]:
        """Return the process of each rank that has started, and its first step."""
        found = re.findall(r"rank (\d), process (\d+), begins at step (\d+)", self.output)
        return {int(rank): (int(process), int(step)) for rank, process, step in found}

    def saved(self) -> list[int]:
        """Return the steps of the complete checkpoints."""
        names = [path.name for path in self.directory.glob("step-*")]
        return sorted(int(name.split("-")[1]) for name in names)

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + stretched(LIMIT)
        while not ready():
            assert self.process.poll() is None, f"the job ended:\n{self.output}"
            assert time.monotonic() < end, f"nothing came of it:\n{self.output}"
            time.sleep(0.05)


def test_a_signal_to_one_rank_saves_or_ends_on_all(tmp_path: Path) -> None:
    """Check a signal for a checkpoint, a signal for the end, and a start that continues from it."""
    last = 0
    for start in range(2):
        job = Started(tmp_path / "checkpoints", tmp_path / f"output-{start}")
        try:
            job.until(lambda job=job: len(job.ranks()) == 2)
            assert [step for _, step in job.ranks().values()] == [last, last], job.output
            os.kill(job.ranks()[1][0], signal.SIGUSR1)
            job.until(lambda job=job, last=last: job.saved()[-1:] > [last])
            before = job.saved()[-1]
            os.kill(job.ranks()[0][0], signal.SIGTERM)
            assert job.process.wait(stretched(LIMIT)) == 0, job.output
            last = job.saved()[-1]
            assert last > before
            assert f"saved step {before}\n" in job.output
            assert f"ended at step {last}; check: each step counts once" in job.output
        finally:
            job.process.terminate()
            job.process.wait(stretched(LIMIT))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("to", ["runner", "supervisor"])
def test_signals_for_the_program_end_no_process_of_the_runner(
    tmp_path: Path, to: str, ranks: int
) -> None:
    """Check SIGUSR1 as batch systems send it: to the runner, or to all processes of a rank."""
    launcher = (sys.executable, "-m", "ncclkv", "run", "-n", str(ranks), "--", sys.executable)
    job = Started(tmp_path / "checkpoints", tmp_path / "output", *launcher)
    try:
        job.until(lambda: len(job.ranks()) == ranks)
        rank = job.ranks()[0][0]
        parent = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(job.process.pid if to == "runner" else parent, signal.SIGUSR1)
        if to == "supervisor":
            os.kill(rank, signal.SIGUSR1)
        job.until(lambda: len(job.saved()) > 0)
        time.sleep(0.5)
        assert job.process.poll() is None, job.output
        os.kill(rank, signal.SIGTERM)
        assert job.process.wait(stretched(LIMIT)) == 0, job.output
        assert len(job.saved()) > 1
    finally:
        job.process.terminate()
        job.process.wait(stretched(LIMIT))
