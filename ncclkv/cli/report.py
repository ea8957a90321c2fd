"""How a job ended, and what is to be said of it."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

LAST_LINES = 12
"""Of a failed rank's stderr that the report repeats."""

WORDS = "ncclkv: "
"""What lines of the package's own begin with."""

_FAILED = re.compile(r"ncclkv: (?:a rank|rank \d+).* failed, ending the job: (.*)")

_OF_ANOTHER = ("RankLost", "RankDied")

_CAUSES = {
    signal.SIGKILL: "often the kernel's out-of-memory killer: dmesg tells",
    signal.SIGBUS: "often shared memory that is full: df /dev/shm tells",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGTERM: "somebody, or a batch system, asked it to end",
}


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
    failure : (str, float) or None
        Why it said it failed, and when.
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
    failure: tuple[str, float] | None = None
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    said: list[str] = field(default_factory=list)

    def hear(self, line: str, seconds: float) -> None:
        """Note a line of its stderr."""
        self.last.append(line)
        if line.startswith(WORDS):
            self.said.append(line)
            if match := _FAILED.match(line):
                self.failure = self.failure or (match.group(1), seconds)

    @property
    def follows(self) -> bool:
        """Whether it failed because another rank had."""
        return self.failure is not None and self.failure[0].startswith(_OF_ANOTHER)

    def failed(self) -> float | None:
        """When it failed; None when it did not."""
        times = [self.failure[1]] if self.failure else []
        if self.code:
            times.append(self.ended)
        return min(times, default=None)

    def __str__(self) -> str:
        where = f" on {self.host} (pid {self.pid})" if self.host else ""
        return f"rank {self.number}{where}"


@dataclass
class Outcome:
    """How a job ended.

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
    def code(self) -> int:
        """The exit code: that of the first rank that failed, as shells have it."""
        if self.asked is not None:
            return 128 + self.asked
        first = self.first
        if first is None:
            return as_shells_do(self.launcher)
        if first.failure is not None:
            # It ended itself, by whatever its launcher notices.
            return first.code if first.code is not None and first.code > 0 else 1
        return as_shells_do(first.code or 0)


def as_shells_do(code: int) -> int:
    """An exit code of 0 to 255."""
    return 128 - code if code < 0 else code


def how(code: int) -> str:
    """How a process ended.

    Examples
    --------
    >>> how(3)
    'ended with exit code 3'
    >>> how(-11)
    'was killed by SIGSEGV (a crash in compiled code)'
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    cause = _CAUSES.get(name)
    return f"was killed by {name.name}" + (f" ({cause})" if cause else "")


def report(outcome: Outcome, attempt: str) -> str:
    """Why a job failed, in lines: the first rank, what it said last, and what the others saw.

    Parameters
    ----------
    outcome : Outcome
    attempt : str
        Which one it was, such as ``"start 2 of 3"``.
    """
    first = outcome.first
    begin = f"ncclkv run: the job failed after {outcome.seconds:.1f} s ({attempt}): "
    if first is None:
        return "\n".join([begin + _of_launcher(outcome), *outcome.words]) + "\n"
    lines = [begin + _of_first(first)]
    if first.last:
        lines += ["its last lines of stderr:"]
        lines += [f"  [{first.number}] {line}" for line in first.last]
    lines += _of_silent(outcome, first)
    said = [
        f"  [{each.number}] {line}"
        for each in outcome.ranks.values()
        for line in each.said
        if each is not first
    ]
    lines += ["the other ranks said:", *said] if said else []
    return "\n".join(lines) + "\n"


def _of_first(rank: Rank) -> str:
    """What happened to the rank that failed first."""
    if rank.failure is not None:
        return f"{rank} failed: {rank.failure[0]}"
    return f"{rank} {how(rank.code or 0)}, {rank.ended:.1f} s after the start"


def _of_launcher(outcome: Outcome) -> str:
    """The same when no rank is known to have failed."""
    begun = "" if any(rank.pid for rank in outcome.ranks.values()) else ", before any rank began"
    said = "; it said:" if outcome.words else " and said nothing"
    return f"its launcher {how(outcome.launcher)}{begun}{said}"


def _of_silent(outcome: Outcome, first: Rank) -> Iterator[str]:
    """What became of ranks that the others may have waited for."""
    for rank in outcome.ranks.values():
        if rank.stopped is not None:
            number, since = rank.stopped
            name = signal.Signals(number).name
            yield f"{rank} was stopped by {name} {since:.1f} s after the start, and did not go on"
        if rank.code == 0 and rank.ended < (first.failed() or 0.0):
            yield f"{rank} had ended with exit code 0, {rank.ended:.1f} s after the start"
