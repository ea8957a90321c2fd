"""Recognise mpirun's own lines; it often blames the wrong rank, so they are not repeated."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

_NOISE = re.compile(
    r"=|YOUR APPLICATION TERMINATED|This typically refers to a problem|Please see the FAQ page"
    r"|\[(proxy|mpiexec)[:@]|\s*$"
)
_RULE = re.compile(r"-{60,}$")

# Prefix by Open MPI of a line from a rank that has no connection to the runner.
_TAG = re.compile(r"\[\d+,\d+\]<std(out|err)>: ?")

_KEPT = 40

_LONGEST = 1 << 16


class LauncherLines:
    """Separates mpirun's lines about failures from other lines, such as those of remote ranks.

    Attributes
    ----------
    kept : deque of str
        The last lines about failures.
    """

    def __init__(self) -> None:
        self.kept: deque[str] = deque(maxlen=_KEPT)
        self._boxed = False

    def is_noise(self, line: str) -> bool:
        """Return whether the next line is about a failure, and keep it.

        Open MPI writes such lines between two rules.
        """
        line = _TAG.sub("", line, count=1)
        rule = bool(_RULE.match(line))
        noise = rule or self._boxed or bool(_NOISE.match(line))
        self._boxed ^= rule
        if noise and line.strip("=- "):
            self.kept.append(line)
        return noise


class Whole:
    """Cuts a launcher's stream into lines, without their ends and without NUL bytes.

    Parameters
    ----------
    take : callable
        ``take(line)`` gets each line, a str.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._waits = b""

    def feed(self, data: bytes) -> None:
        """Process the launcher's output; lines of more than 64 KiB are cut."""
        *lines, self._waits = (self._waits + data.replace(b"\0", b"")).split(b"\n")
        if len(self._waits) > _LONGEST:
            lines.append(self._waits)
            self._waits = b""
        for line in lines:
            self._take(line.decode(errors="replace"))

    def end(self) -> None:
        """Process the last line, which may lack its end."""
        if self._waits:
            self.feed(b"\n")
