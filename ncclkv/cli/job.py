"""Job: one start of a command on several ranks, its output and its end."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from ncclkv.cli import wire
from ncclkv.cli.connections import Connections
from ncclkv.cli.descendants import adopt, children, end_all, stat_of
from ncclkv.cli.launcher import LauncherLines, Whole
from ncclkv.cli.leftovers import Leftovers, shortage
from ncclkv.cli.outcome import Outcome, Rank, never_started
from ncclkv.cli.output import Output
from ncclkv.cli.process import PR_SET_PDEATHSIG
from ncclkv.cli.rank import ALONE
from ncclkv.cli.report import how

_RANK = Path(__file__).with_name("rank.py")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_CHUNK = 1 << 16
_LOOK_SECONDS = 0.1

_ASKED_SECONDS = 5.0
"""Seconds for the ranks to end by themselves after a signal to this process."""

_FAILED_SECONDS = 3.0
"""Seconds for the other ranks to end after a failure, which the launcher sees 1 s earlier."""

_LAUNCHER_SECONDS = 10.0
"""Seconds for the launcher to end by itself once all ranks ended with exit code 0."""

_LAST_SECONDS = 2.0
"""Seconds for the launcher and the killed ranks to end."""


@dataclass(frozen=True)
class Start:
    """Command line, environment and size of a job.

    Attributes
    ----------
    ranks : int
    launcher : sequence of str
        Beginning of the command line, ``["mpirun", "-n", "4"]``; empty for one rank without MPI.
    command : sequence of str
    environment : mapping of str to str
    port : int or None
        Port for ranks of other hosts, 0 for any free port; None for ranks of this machine only.
    output : Path or None
        Folder with a file for each stream of a rank.
    """

    ranks: int
    launcher: Sequence[str]
    command: Sequence[str]
    environment: Mapping[str, str]
    port: int | None = None
    output: Path | None = None


class Job:
    """Starts a command on several ranks, and waits for its end.

    Parameters
    ----------
    start : Start

    Raises
    ------
    OSError
        When the port cannot be bound.
    """

    def __init__(self, start: Start) -> None:
        self._ranks = {number: Rank(number) for number in range(start.ranks)}
        self._what = start
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(start.ranks, start.port, self._selector, self._take)
        self._output = Output(self._hear, partial(self._note_signal, signal.SIGTERM), start.output)
        self._own = LauncherLines()
        self._passed = [Whole(partial(self._pass_on, kind)) for kind in (wire.OUT, wire.ERR)]
        self._signals: list[int] = []
        self._asked: int | None = None
        self._limit: float | None = None
        self._all_ended = False
        self._launcher_limit: float | None = None
        self._hung = False
        self._start = time.monotonic()

    def run(self) -> Outcome:
        """Run the job, once.  Signals that would end this process end the job instead."""
        before = {number: signal.signal(number, self._note_signal) for number in _SIGNALS}
        adopt()
        spared = children()
        try:
            leftovers = Leftovers()
            if self._what.launcher and (warning := shortage(len(self._ranks))):
                self._output.between(wire.ERR, warning)
            with self._begin() as process:
                try:
                    while process.poll() is None and not self._over(process):
                        self._read(_LOOK_SECONDS)
                        leftovers.look(process.pid)
                finally:
                    self._kill()
                    self._end(process)
                    end_all(spared)
                    leftovers.sweep(process.pid)
                self._finish()
            words, code = list(self._own.kept), 0 if self._hung else process.returncode
            return Outcome(self._ranks, self._seconds(), code, words, self._asked)
        finally:
            self._connections.close()
            self._selector.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin(self) -> subprocess.Popen[bytes]:
        """Start the launcher in a new session, whose process group can be killed at once."""
        libc = ctypes.CDLL(None)
        alone = [] if self._what.launcher else [ALONE]
        supervisor = [sys.executable, "-I", "-S", str(_RANK), *alone, self._connections.address]
        process = subprocess.Popen(
            [*self._what.launcher, *supervisor, *self._what.command],
            env={**self._what.environment, wire.SECRET: self._connections.secret},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Without this the launcher outlives a runner that is killed.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        for stream, whole in zip((process.stdout, process.stderr), self._passed, strict=True):
            if stream is not None:
                number = stream.fileno()
                call = partial(self._read_launcher, number, whole)
                self._selector.register(number, selectors.EVENT_READ, call)
        return process

    def _read(self, seconds: float) -> bool:
        """Read arriving data for `seconds`; return whether any arrived."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            key.data()
        self._connections.pause(self._output.idle())
        return bool(ready)

    def _read_launcher(self, number: int, whole: Whole) -> None:
        data = os.read(number, _CHUNK)
        if data:
            whole.feed(data)
        else:
            self._selector.unregister(number)

    def _over(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether the processes that are left must be ended now."""
        now = time.monotonic()
        if self._signals:
            number = self._signals.pop(0)
            if self._asked is not None:  # a second signal ends the job at once
                return True
            self._asked = number
            os.killpg(process.pid, number)
            self._limit = now + _ASKED_SECONDS
        if self._failed() and self._limit is None:
            self._limit = now + _FAILED_SECONDS
        ended = all(rank.over for rank in self._ranks.values())
        if ended and self._limit is None and not self._all_ended:
            self._all_ended = True
            self._connections.tell(wire.ALL_ENDED)
            if all(rank.code == 0 for rank in self._ranks.values()):
                self._launcher_limit = now + _LAUNCHER_SECONDS
        if self._limit is not None:
            return ended or now > self._limit
        self._hung = self._launcher_limit is not None and now > self._launcher_limit
        if self._hung:
            words = f"had not ended {_LAUNCHER_SECONDS:g} s after its ranks, and was killed"
            self._output.between(wire.ERR, f"ncclkv run: the launcher {words}")
        return self._hung

    def _failed(self) -> bool:
        """Return whether any rank has failed, or is sure to fail."""
        ranks = self._ranks.values()
        return any(rank.failed() is not None for rank in ranks) or any(
            rank.code == 0 for rank in never_started(ranks)
        )

    def _kill(self) -> None:
        """Have the supervisors kill the ranks that still run, and mark them as killed."""
        self._read(0)
        for rank in self._ranks.values():
            rank.killed = not rank.over
        self._connections.tell(wire.KILL)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the launcher and the ranks, by SIGTERM and then by SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
            limit = time.monotonic() + _LAST_SECONDS
            while self._left(process) and time.monotonic() < limit:
                self._read(_LOOK_SECONDS)
        process.wait()

    def _left(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a process of the job still runs."""
        here = os.uname().nodename
        pids = [rank.pid for rank in self._ranks.values() if rank.host == here]
        return process.poll() is None or any(_runs(pid) for pid in pids)

    def _finish(self) -> None:
        """Read the remaining output; a network may still be delivering it."""
        limit = time.monotonic() + _LAST_SECONDS
        self._read(0)
        while self._connections.open and time.monotonic() < limit:
            self._read(_LOOK_SECONDS)
        while self._read(0):
            pass
        for whole in self._passed:
            whole.end()
        self._output.end()

    def _note_signal(self, number: int, frame: FrameType | None = None) -> None:
        self._signals.append(number)

    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _hear(self, rank: int, line: str) -> None:
        self._ranks[rank].hear(line)

    def _pass_on(self, kind: bytes, line: str) -> None:
        """Forward a line of the launcher's output; it decides nothing."""
        if not self._own.is_noise(line):
            self._output.between(kind, line)

    def _take(self, number: int, kind: bytes, data: bytes) -> None:
        """Process a frame of a rank's supervisor."""
        if kind in (wire.OUT, wire.ERR):
            self._output.feed(number, kind, data)
            return
        rank = self._ranks[number]
        first = not self._failed()
        rank.take(kind, data.decode(errors="replace"), self._seconds())
        if kind == wire.ENDED and rank.code and first:  # before the other ranks report it
            self._output.between(wire.ERR, f"ncclkv run: {rank} {how(rank.code)}")


def _runs(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    return stat_of(pid)[:1] not in ([], ["Z"], ["X"])
