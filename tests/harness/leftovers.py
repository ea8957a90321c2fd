"""Shared memory that MPICH leaves behind when a job is aborted, as jobs under test often are.

Some 4 MB each, they would fill the 64 MB that a container has for shared memory by default, and
the next job would not start.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path("/dev/shm")
PATTERN = "mpich_shm_*"


def present(folder: Path = FOLDER) -> set[Path]:
    """The files there are."""
    return set(folder.glob(PATTERN))


def sweep(before: set[Path], folder: Path = FOLDER) -> None:
    """Remove the files that were not there `before`, are ours, and that no process has mapped."""
    new = {path for path in present(folder) - before if is_ours(path)}
    if new:
        mapped = "".join(read(maps) for maps in Path("/proc").glob("[0-9]*/maps"))
        for path in new:
            if str(path) not in mapped:
                path.unlink(missing_ok=True)


def is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def read(path: Path) -> str:
    """The text of a file; empty when its process has ended or is another user's."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
