"""Recognise mpirun's own lines; it often blames the wrong rank, so they are not repeated."""

from __future__ import annotations

import re
from collections.abc import Callable

from ncclkv.cli.unreached import is_reason

_NOISE = re.compile(
    r"=|YOUR APPLICATION TERMINATED|This typically refers to a problem|Please see the FAQ page"
    r"|\[(proxy|mpiexec)[:@]|\s*$"
)
_RULE = re.compile(r"-{60,}$")

# Prefix by Open MPI of a line from a rank that has no connection to the runner.
_TAG = re.compile(r"\[\d+,\d+\]<std(out|err)>: ?")

_LONGEST = 1 << 16


class LauncherStream:
    """A stream of mpirun, whose lines about failures are separated from other lines.

    Parameters
    ----------
    forward : callable
        ``forward(line)`` gets each other line, such as one of a remote rank, without its end.
    keep : callable
        ``keep(line)`` gets each line about a failure.
    """

    def __init__(self, forward: Callable[[str], None], keep: Callable[[str], None]) -> None:
        self._forward = forward
        self._keep = keep
        self._begun = b""
        self._boxed = False

    def feed(self, data: bytes) -> None:
        """Process output; NUL bytes are removed, and lines of more than 64 KiB are cut."""
        *lines, self._begun = (self._begun + data.replace(b"\0", b"")).split(b"\n")
        if len(self._begun) > _LONGEST:
            lines.append(self._begun)
            self._begun = b""
        for line in lines:
            self._process(line.decode(errors="replace"))

    def end(self) -> None:
        """Process the last line, which may lack its end."""
        if self._begun:
            self.feed(b"\n")

    def _process(self, line: str) -> None:
        """Forward or keep a line; Open MPI writes lines about failures between two rules.

        Lines of ssh are forwarded, too: mpirun may not end for a long time.
        """
        text = _TAG.sub("", line, count=1)
        rule = bool(_RULE.match(text))
        noise = rule or self._boxed or bool(_NOISE.match(text))
        self._boxed ^= rule
        reason = is_reason(text)
        if not noise:
            self._forward(line)
        if reason or (noise and text.strip("=- ")):
            self._keep(text)
