"""Jobs of the programs beside these tests, on emulated devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.harness import job
from tests.harness.source import ROOT

PROGRAMS = Path(__file__).resolve().parent / "programs"


def start(
    program: str | Path, *arguments: str, ranks: int, mark: Path, **options: Any
) -> job.Ended:
    """Start a program, or one of ``programs/``, on several ranks, and wait for its end.

    Parameters
    ----------
    mark : Path
        The file that a rank may touch; the seconds of the job count from then on.
    **options
        Options of `tests.harness.job.start`, and environment variables.
    """
    searched = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    # A device for each rank, also where the tests themselves have fewer.
    options = {"PYTHONPATH": os.pathsep.join(searched), "EMULATED_DEVICES": "4", **options}
    return job.start(PROGRAMS / program, *arguments, ranks=ranks, mark=mark, **options)


def lines(ended: job.Ended) -> dict[int, list[list[str]]]:
    """Return the parts of each rank's lines, such as ``rank 1 | part | part``."""
    found: dict[int, list[list[str]]] = {}
    for line in ended.out.splitlines():
        # `ncclkv run` puts the rank before each line.
        text = line.partition("] ")[2] if line.startswith("[") else line
        if text.startswith("rank ") and " | " in text:
            rank, *parts = text.removeprefix("rank ").split(" | ")
            found.setdefault(int(rank), []).append(parts)
    return found
