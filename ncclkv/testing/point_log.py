"""`PointLog`: the points of a world, and their SHA-256, which is equal in every replay."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)
_CONCURRENCY = str(Path(__file__).parent.with_name("concurrency.py"))
_PACKAGE = Path(__file__).parents[2]

_LINES = 4096
"""Lines that are hashed at once."""


class PointLog:
    """Lines of time, actor and label: one for each point.

    Labels and times alone are hashed: names of files, ids of processes and addresses differ
    between two runs.

    Parameters
    ----------
    keep : bool
        Whether to keep the lines as text, each with the file and line of the point.

    Attributes
    ----------
    lines : list of str
    """

    def __init__(self, *, keep: bool) -> None:
        self.lines: list[str] = []
        self._keep = keep
        self._hash = hashlib.sha256()
        self._unhashed: list[str] = []

    def note(self, now: int, actor: int, label: str) -> None:
        """Add a point."""
        line = f"{now} {actor} {label}\n"
        self._unhashed.append(line)
        if len(self._unhashed) == _LINES:
            self._digest()
        if self._keep:
            self.lines.append(f"{line.rstrip()} at {_place()}")

    def _digest(self) -> None:
        """Hash the lines that are not yet hashed."""
        self._hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()

    @property
    def sha256(self) -> str:
        """The SHA-256 of all points so far, in hexadecimal digits."""
        self._digest()
        return self._hash.hexdigest()


def _place() -> str:
    """Return the file and line that made the point."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, _CONCURRENCY)):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path.name
    return f"{name}:{frame.f_lineno}"
