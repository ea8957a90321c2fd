"""Ends of a job's ranks, and the exit code and cause that follow for the job."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclkv import notify
from ncclkv.cli import wire
from ncclkv.system import abort

LAST_LINES = 12
"""Of a failed rank's stderr that the report repeats."""

WORDS = "ncclkv: "
"""Prefix of the package's own lines."""

_FAILED = re.compile(r"ncclkv: (?:a rank|rank (\d+)).* failed, ending the job: (.*)")

_OF_MPI = "Other MPI error"
"""Begins what MPICH reports of a connection that broke, as the one to a rank that failed before."""


_ENDS_OF_RUNNER = (-signal.SIGTERM, -signal.SIGKILL)
"""Exit codes of ranks that the runner ends: by its supervisors, or with the launcher's group."""


@dataclass
class Rank:
    """One rank of a job; times are in seconds from the start of the job.

    Attributes
    ----------
    host : str
    pid : int
    code : int or None
        Its exit code, or minus the number of the signal that ended it; None where nobody knows.
    ended : float
    stopped : (int, float) or None
        The signal that it is stopped by, and since when.
    lost : float or None
        When its supervisor's connection broke before it reported an end.
    failure : (str, float) or None
        The reason that the rank itself reported for its end, and when.
    mpi : str
        `notify.MPI_BEGINS` from when it entered MPI's start, `notify.MPI_RUNS` from when it left.
    killed : bool
        The runner told its supervisor to kill it: an end by SIGKILL is then no failure of its own.
    last : deque of str
        The last lines of its stderr.
    said : list of str
        The lines of ncclkv among them.
    """

    number: int
    host: str = ""
    pid: int = 0
    code: int | None = None
    ended: float = 0.0
    stopped: tuple[int, float] | None = None
    lost: float | None = None
    failure: tuple[str, float] | None = None
    mpi: str = ""
    killed: bool = False
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    said: list[str] = field(default_factory=list)

    def take(self, kind: bytes, text: str, seconds: float) -> None:
        """Note a frame of the rank's supervisor; an empty kind is the end of its connection."""
        if kind == wire.BEGAN:
            pid, _, self.host = text.partition(" ")
            self.pid = int(pid)
        elif kind == wire.STOPPED:
            self.stopped = (int(text), seconds)
        elif kind == wire.CONTINUED:
            self.stopped = None
        elif kind == wire.ENDED:
            self.code, self.ended = int(text), seconds
        elif kind == wire.EVENT:
            event, _, words = text.partition(" ")
            if event == notify.FAILED:
                self.failure = self.failure or (words, seconds)
            elif event in (notify.MPI_BEGINS, notify.MPI_RUNS):
                self.mpi = event
        elif not kind and self.code is None:
            self.lost = seconds

    def hear(self, line: str) -> None:
        """Note a line of its stderr, to be repeated; nothing is decided by it."""
        self.last.append(line)
        if line.startswith(WORDS):
            self.said.append(line)

    @property
    def began(self) -> bool:
        """Return whether its command was started."""
        return self.pid != 0

    @property
    def over(self) -> bool:
        """Return whether nothing more is to be learned of it."""
        return self.code is not None or self.lost is not None

    @property
    def reason(self) -> str:
        """Return why it ended itself; empty when that is not known.

        The watchdog of calls that never return can only write a text and abort.
        """
        if self.failure is not None:
            return self.failure[0]
        if self.code == -signal.SIGABRT:
            for line in self.said:
                match = _FAILED.match(line)
                if match and match.group(1) == str(self.number):
                    return match.group(2)
        return ""

    @property
    def follows(self) -> bool:
        """Tell whether the rank failed because another rank had failed."""
        if self.failure is None:
            return False
        return abort.follows(self.failure[0]) or _OF_MPI in self.failure[0]

    def failed(self) -> float | None:
        """Return when it failed; None when it did not."""
        times = [self.failure[1]] if self.failure else []
        if self.code and not (self.killed and self.code in _ENDS_OF_RUNNER):
            times.append(self.ended)
        return min(times, default=None)

    def __str__(self) -> str:
        where = f" on {self.host} (pid {self.pid})" if self.host else ""
        return f"rank {self.number}{where}"


@dataclass
class Outcome:
    """End of a job.

    Attributes
    ----------
    ranks : dict of int to Rank
    seconds : float
        How long it ran.
    launcher : int
        The exit code of mpirun, or minus the number of a signal.
    words : list of str
        What mpirun said of failures.
    asked : int or None
        The signal by which this process was asked to end the job.
    """

    ranks: dict[int, Rank]
    seconds: float
    launcher: int
    words: list[str]
    asked: int | None = None

    @property
    def first(self) -> Rank | None:
        """The rank that failed first; None when none did.

        One that failed because of another may have been heard of before that.
        """
        failed = [rank for rank in self.ranks.values() if rank.failed() is not None]
        return min(failed, key=lambda rank: (rank.follows, rank.failed() or 0.0), default=None)

    @property
    def unreported(self) -> list[Rank]:
        """Return the ranks that began and did not report an end with exit code 0."""
        return [rank for rank in self.ranks.values() if rank.began and rank.code != 0]

    @property
    def left(self) -> Rank | None:
        """Return the rank that ended with exit code 0 and was the undoing of the others.

        No rank failed by itself: those that did miss another, or were killed by the launcher.
        """
        first = self.first
        if not self.unreported or (first is not None and not first.follows):
            return None
        ended = [rank for rank in self.ranks.values() if rank.code == 0]
        return min(ended, key=lambda rank: rank.ended, default=None)

    @property
    def code(self) -> int:
        """Return 0 if every rank reported 0, else the code of the first to fail, as in shells."""
        if self.asked is not None:
            return 128 + self.asked
        if self.left is not None:
            return 1
        first = self.first
        if first is None:
            return as_shells_do(self.launcher) or int(bool(self.unreported))
        if first.reason:
            # It ended itself, by whatever its launcher notices.
            return first.code if first.code is not None and first.code > 0 else 1
        return as_shells_do(first.code or 0)


def never_started(ranks: Iterable[Rank]) -> list[Rank]:
    """Return the ranks that others wait for in MPI's start, and that did not fail before it."""
    ranks = list(ranks)
    if not any(rank.mpi == notify.MPI_BEGINS for rank in ranks):
        return []
    return [rank for rank in ranks if rank.began and not rank.mpi and rank.failed() is None]


def as_shells_do(code: int) -> int:
    """An exit code of 0 to 255."""
    return 128 - code if code < 0 else code
