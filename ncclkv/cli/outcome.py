"""Outcome of a job: the ends of its ranks, the first failure and the exit code."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclkv import notify
from ncclkv.cli import protocol
from ncclkv.cli.rank_pages import PageAddress
from ncclkv.system import abort

LAST_LINES = 12
"""Lines of a failed rank's stderr in the report."""

PREFIX = "ncclkv: "
"""Prefix of the package's own lines."""

_FAILED = re.compile(r"ncclkv: (?:a rank|rank (\d+)).* failed, ending the job: (.*)")

_EVENT = re.compile(rf"{notify.PREFIX}({'|'.join(notify.EVENTS)}) ?(.*)", re.DOTALL)

_LARGEST_CODE = 255

_MOST_PAGES = 16
"""Count of pages of a rank that are kept, the newest ones."""

_MPI_ERROR = "Other MPI error"
"""First words of MPICH's error for a broken connection, such as that to a failed rank."""

_KILLED = (int(signal.SIGKILL), 128 + signal.SIGKILL)
"""Exit codes of launchers after SIGKILL of a process that they started."""

_AT_ONCE_SECONDS = 0.002
"""Two connections whose ends are read within this time may have broken in the other order."""

_ENDS_OF_RUNNER = (-signal.SIGTERM, -signal.SIGKILL)
"""Exit codes of ranks that the runner ends: by its supervisors, or with the launcher's group."""


class Exit(NamedTuple):
    """The beginning of a rank's exit, as the rank reported it.

    Attributes
    ----------
    code : int or None
        None where the rank could not know it.
    seconds : float
    """

    code: int | None
    seconds: float


@dataclass
class Rank:
    """One rank of a job; times are in seconds from the start of the job.

    Attributes
    ----------
    host : str
    place : str
        The host on which the user placed it; empty where the launcher chooses.
    pid : int
    code : int or None
        Its exit code, or minus the number of the signal that ended it; None where unknown.
    ended : float
    stopped : (int, float) or None
        The signal that stopped it, and the time.
    lost : float or None
        Time at which the supervisor's connection broke, if it had not reported the rank's end.
    failure : (str, float) or None
        The reason that the rank reported before it ended itself, and the time.
    exits : Exit or None
    broken : str
        The last error of its stores, which the program may have caught; empty without one.
    pages : dict of (int, int) to PageAddress
        Where the pages of its stores are, by process and address.
    mpi : str
        `notify.MPI_BEGINS` inside MPI's start, `notify.MPI_RUNS` after it, else empty.
    killed : bool
        True once the runner has ended the rank: SIGKILL is then no failure of this rank.
    warned : bool
        True once a line that is no event has been reported.
    last : deque of str
        The last lines of its stderr.
    errors : list of str
        All lines of its stderr that ncclkv wrote.
    """

    index: int
    host: str = ""
    pid: int = 0
    code: int | None = None
    ended: float = 0.0
    stopped: tuple[int, float] | None = None
    lost: float | None = None
    failure: tuple[str, float] | None = None
    exits: Exit | None = None
    broken: str = ""
    mpi: str = ""
    killed: bool = False
    warned: bool = False
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    errors: list[str] = field(default_factory=list)
    place: str = ""
    pages: dict[tuple[int, int], PageAddress] = field(default_factory=dict)

    def take(self, kind: bytes, text: str, seconds: float) -> bool:
        """Process a frame of the supervisor; an empty kind is the end of the connection.

        Returns
        -------
        bool
            False for an event that is none: any program may write to the pipe of a rank.
        """
        if kind == protocol.BEGAN:
            pid, _, self.host = text.partition(" ")
            self.pid = int(pid)
        elif kind == protocol.STOPPED:
            self.stopped = (int(text), seconds)
        elif kind == protocol.CONTINUED:
            self.stopped = None
        elif kind == protocol.ENDED:
            self.code, self.ended = int(text), seconds
        elif kind == protocol.EVENT:
            return self._take_event(text, seconds)
        elif not kind and self.code is None:
            self.lost = seconds
        return True

    def _take_event(self, text: str, seconds: float) -> bool:
        """Process an event of the rank; return False if the text is none."""
        match = _EVENT.fullmatch(text)
        if match is None:
            return False
        event, value = match.groups()
        if event == notify.FAILED:
            self.failure = self.failure or (value, seconds)
        elif event == notify.BROKEN:
            self.broken = value
        elif event == notify.EXITS:
            if value != notify.UNKNOWN and not (value.isdecimal() and int(value) <= _LARGEST_CODE):
                return False
            self.exits = Exit(None if value == notify.UNKNOWN else int(value), seconds)
        elif event == notify.PAGE:
            page = PageAddress.read(value)
            if page is None:
                return False
            self.pages[page.pid, page.address] = page
            if len(self.pages) > _MOST_PAGES:  # the oldest is most likely that of a closed store
                del self.pages[next(iter(self.pages))]
        else:
            self.mpi = event
        return True

    def keep_line(self, line: str) -> None:
        """Keep a line of its stderr for the report; the line decides nothing."""
        self.last.append(line)
        if line.startswith(PREFIX):
            self.errors.append(line)

    @property
    def began(self) -> bool:
        """Return whether its command was started."""
        return self.pid != 0

    @property
    def over(self) -> bool:
        """Return whether its end is known, or its connection lost."""
        return self.code is not None or self.lost is not None

    @property
    def reason(self) -> str:
        """Return the reason for which it ended itself; empty where unknown.

        The watchdog of calls that never return can only write a text and abort.
        """
        if self.failure is not None:
            return self.failure[0]
        if self._cut_off and self._cut_off.code:
            return f"exit code {self._cut_off.code}"
        if self.code == -signal.SIGABRT:
            for line in self.errors:
                match = _FAILED.match(line)
                if match and match.group(1) == str(self.index):
                    return match.group(2)
        return ""

    @property
    def _cut_off(self) -> Exit | None:
        """Return `exits` if the rank was killed before its end."""
        killed = self.over and (self.code is None or self.code < 0)
        return self.exits if killed else None

    @property
    def follows(self) -> bool:
        """Return whether the rank failed because another rank had failed."""
        reason = self.failure[0] if self.failure else self.broken
        return abort.follows(reason) or _MPI_ERROR in reason

    @property
    def leaves(self) -> float | None:
        """Return the time at which it began to exit, as after a success; None if it did not."""
        if self.code == 0:
            return self.exits.seconds if self.exits else self.ended
        if self._cut_off and not self._cut_off.code and not self.broken:
            return self._cut_off.seconds
        return None

    def failed(self) -> float | None:
        """Return the time of its failure; None without one."""
        times = [self.failure[1]] if self.failure else []
        if self._cut_off and self._cut_off.code:
            times.append(self._cut_off.seconds)
        # Open MPI's mpirun ends by SIGTERM a rank that exits while the others fail.
        ended = self.killed or (self.exits and self.code == -signal.SIGTERM)
        if self.code and not (ended and self.code in _ENDS_OF_RUNNER):
            # A rank that exits may have waited for the other ranks, which fail because of it.
            times.append(self.exits.seconds if self.exits else self.ended)
        return min(times, default=None)

    def __str__(self) -> str:
        where = f" on {self.host} (pid {self.pid})" if self.host else ""
        return f"rank {self.index}{where}"


class Outcome(NamedTuple):
    """End of a job.

    Attributes
    ----------
    ranks : dict of int to Rank
    seconds : float
        Its duration.
    launcher : int
        The exit code of mpirun, or minus the number of a signal.
    launcher_lines : list of str
        Lines of mpirun about failures.
    interrupted_by : int or None
        The signal by which the user ended the job.
    """

    ranks: dict[int, Rank]
    seconds: float
    launcher: int
    launcher_lines: list[str]
    interrupted_by: int | None = None

    @property
    def first(self) -> Rank | None:
        """Return the rank that failed first; None without a failure.

        A rank that failed on its own comes before ranks that failed because of it, even where the
        reports arrived in another order.
        """
        failed = [rank for rank in self.ranks.values() if rank.failed() is not None]
        return min(failed, key=lambda rank: (rank.follows, rank.failed() or 0.0), default=None)

    @property
    def unreported(self) -> list[Rank]:
        """Return the ranks that began and did not report an end with exit code 0."""
        return [rank for rank in self.ranks.values() if rank.began and rank.code != 0]

    @property
    def not_begun(self) -> list[Rank]:
        """Return the ranks that never began, if the job failed for the lack of them.

        All ranks began where one has left MPI's start: the others may not have reached the runner.
        """
        first = self.first
        alone = first is not None and not first.follows and first.mpi != notify.MPI_BEGINS
        if alone or any(rank.mpi == notify.MPI_RUNS for rank in self.ranks.values()):
            return []
        return [rank for rank in self.ranks.values() if not rank.began]

    @property
    def torn(self) -> list[Rank]:
        """Return the rank whose supervisor was killed; empty without one.

        MPICH's mpirun then reports SIGKILL, and kills the other supervisors.  Their ranks are
        included if a busy machine has read their ends at once.  Open MPI's mpirun sends SIGTERM to
        the other ranks.
        """
        ranks = self.ranks.values()
        lost = [rank for rank in ranks if rank.lost is not None and not rank.killed]
        first = min((rank.lost or 0.0 for rank in lost), default=0.0)
        if not lost or any(rank.leaves is not None for rank in ranks):
            return []
        failed = [rank for rank in ranks if rank.failed() is not None]
        ended = all(rank.code == -signal.SIGTERM or rank.follows for rank in failed)
        after = ended and all((rank.failed() or 0.0) > first for rank in failed)
        killed = self.launcher in _KILLED or (self.launcher and failed)
        torn = [rank for rank in lost if (rank.lost or 0.0) < first + _AT_ONCE_SECONDS]
        return torn if after and killed else []

    @property
    def left(self) -> Rank | None:
        """Return the rank whose exit, as after a success, made the others fail; None without one.

        The condition is that no other rank failed on its own: the others raised because a rank was
        missing, or the launcher killed them.
        """
        first = self.first
        if not self.unreported or (first is not None and not first.follows):
            return None
        ended = [rank for rank in self.ranks.values() if rank.leaves is not None]
        return min(ended, key=lambda rank: rank.leaves or 0.0, default=None)

    @property
    def code(self) -> int:
        """Return 0 if every rank reported 0, else the code of the first to fail, as in shells."""
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        if self.torn:
            return shell_code(-signal.SIGKILL)
        if self.left is not None:
            return 1
        first = self.first
        if first is None:
            return shell_code(self.launcher) or int(bool(self.unreported))
        if first.reason:
            # A rank that ends the job may do so by a signal, which is no exit code of its own.
            announced = (first.exits.code if first.exits else None) or 1
            return first.code if first.code is not None and first.code > 0 else announced
        return shell_code(first.code or 0)


def never_started(ranks: Iterable[Rank]) -> list[Rank]:
    """Return the ranks that others await in MPI's start and that did not fail before."""
    ranks = list(ranks)
    if not any(rank.mpi == notify.MPI_BEGINS for rank in ranks):
        return []
    return [rank for rank in ranks if rank.began and not rank.mpi and rank.failed() is None]


def shell_code(code: int) -> int:
    """Convert an exit code or negative signal to 0 to 255, as shells do."""
    return 128 - code if code < 0 else code
