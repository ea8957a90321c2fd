"""Files of a run: the report with its tables, the JSON and the pictures.

Tables are written as they are measured, so a run that is killed leaves those that it has.  No file
of an earlier run is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.job import Job
from bench.report import plots, summary


def reserve(folder: Path) -> Path:
    """Create the empty report of a run; return its path without the suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    start = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    base = folder / start
    suffix = 0
    while True:
        try:
            base.with_suffix(".txt").touch(exist_ok=False)
            return base
        except FileExistsError:
            base, suffix = folder / f"{start}-{suffix}", suffix + 1


def write(base: Path, record: dict[str, Any]) -> list[str]:
    """Write the JSON and the pictures; return names, and a line about pictures that are missing."""
    path = base.with_suffix(".json")
    path.write_text(json.dumps(record, indent=1) + "\n")
    return [str(path), *plots.draw(base, record)]


@contextmanager
def report(job: Job, warnings: Sequence[str] = ()) -> Iterator[None]:
    """Collect what the job prints; at the end print it all, with three sentences on top.

    Parameters
    ----------
    warnings : sequence of str
        Lines that stand before the sentences.
    """
    if job.comm.rank != 0:
        yield
        return
    base = reserve(job.options.out)
    path = base.with_suffix(".txt")
    job.tell(f"# the report comes at the end; tables so far: {path}")
    job.stream = path.open("w")
    for line in warnings:
        job.print(line)
    try:
        yield
    except BaseException:
        _close(job)
        job.print(path.read_text())
        raise
    _close(job)
    text = "\n".join([*warnings, *summary.sentences(job.record), "", path.read_text()])
    path.write_text(text)
    job.print(text)
    for name in (path, *write(base, job.record)):
        job.print(f"# {name}")


def _close(job: Job) -> None:
    """Let the job print on the standard output again."""
    if job.stream is not None:
        job.stream.close()
    job.stream = None
