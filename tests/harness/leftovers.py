"""Shared memory that MPICH leaves behind when a job is aborted, as tests often do.

Each file has some 4 MB.  A container has 64 MB of shared memory by default; a few aborted jobs fill
it, and then no job starts.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path("/dev/shm")
PATTERN = "mpich_shm_*"


def present(folder: Path = FOLDER) -> set[Path]:
    """Return the files that exist."""
    return set(folder.glob(PATTERN))


def sweep(before: set[Path], folder: Path = FOLDER) -> None:
    """Remove new files (not in `before`) that are ours and that no process has mapped."""
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
    """Return the text of a file; empty if its process has ended or is another user's."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
