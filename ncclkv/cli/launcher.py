"""What mpirun itself writes: the most is about ranks that failed, and wrong about which one did."""

from __future__ import annotations

import re
from collections import deque

_NOISE = re.compile(
    r"=|YOUR APPLICATION TERMINATED|This typically refers to a problem|Please see the FAQ page"
    r"|\[(proxy|mpiexec)[:@]|\s*$"
)
_RULE = re.compile(r"-{60,}$")

_KEPT = 40


class LauncherLines:
    """Tells mpirun's words on failures from others, such as those of ranks on other machines.

    Attributes
    ----------
    kept : deque of str
        The last of the words on failures.
    """

    def __init__(self) -> None:
        self.kept: deque[str] = deque(maxlen=_KEPT)
        self._boxed = False

    def is_noise(self, line: str) -> bool:
        """Whether the next line is such a word, which is kept.

        Open MPI puts them between two rules.
        """
        rule = bool(_RULE.match(line))
        noise = rule or self._boxed or bool(_NOISE.match(line))
        self._boxed ^= rule
        if noise and line.strip("=- "):
            self.kept.append(line)
        return noise
