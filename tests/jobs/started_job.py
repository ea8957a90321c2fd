"""Jobs under ``ncclkv run`` that a test watches while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.harness.slow import stretched
from tests.jobs.conftest import LIMIT, ROOT, Ended


class StartedJob:
    """A job that has been started.

    Parameters
    ----------
    folder : Path
        Gets the file MARK, and a folder for temporary files.
    *arguments : str
        Of ``ncclkv run``.
    ranks : int
    """

    def __init__(self, folder: Path, *arguments: str, ranks: int = 2) -> None:
        self.mark = folder / "mark"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ncclkv", "run", "-n", str(ranks), *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "MARK": str(self.mark),
                "TMPDIR": str(self.temporary),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def output(self) -> tuple[str, str]:
        """Wait for the end of the runner; return the text of its two streams."""
        try:
            return self.process.communicate(timeout=LIMIT)
        finally:
            self.process.kill()

    def end(self) -> Ended:
        """Wait for the end of a job that may leave no list."""
        begin = time.time()
        out, err = self.output()
        seconds = time.time() - (self.mark.stat().st_mtime if self.mark.exists() else begin)
        assert not list(self.temporary.glob("ncclkv-run-*")), "it leaves a list"
        return Ended(self.process.returncode, out, err, seconds)

    def wait_for_mark(self) -> None:
        """Wait until a rank has touched MARK."""
        limit = time.monotonic() + stretched(15)
        while not self.mark.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        assert self.mark.exists(), "the job never got to its wait"


def left(folder: Path) -> list[str]:
    """Return the processes that have the MARK of this folder in their environment."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={folder / 'mark'}".encode() in (each / "environ").read_bytes():
                found.append((each / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
