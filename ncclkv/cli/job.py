"""One start of a job: its processes, what they write, and their end."""

from __future__ import annotations

import ctypes
import os
import re
import select
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from ncclkv.cli.launcher import LauncherLines
from ncclkv.cli.lines import Lines
from ncclkv.cli.report import Outcome, Rank, how

_RANK = Path(__file__).with_name("rank.py")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1
_EVENTS = "events"
_CHUNK = 1 << 16
_LOOK_SECONDS = 0.1

_ASKED_SECONDS = 5.0
"""For the ranks to end by themselves after a signal to this process."""

_FAILED_SECONDS = 3.0
"""For the other ranks to end after one has failed; its launcher learns of that a second before."""

_LAST_SECONDS = 2.0
"""Seconds for the launcher to end once its ranks have been killed, and for them to be gone."""


class Job:
    """Start a command on several ranks, and wait for its end.

    Parameters
    ----------
    ranks : int
    launcher : sequence of str
        What begins the command line, ``["mpirun", "-n", "4"]``; empty for one rank without MPI.
    command : sequence of str
    environment : mapping of str to str
    """

    def __init__(
        self,
        ranks: int,
        launcher: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._ranks = {number: Rank(number) for number in range(ranks)}
        self._line = [*launcher, sys.executable, "-I", "-S", str(_RANK)]
        self._command = list(command)
        self._environment = dict(environment)
        self._selector = selectors.DefaultSelector()
        self._pipes: list[int] = []
        self._folder = Path(tempfile.mkdtemp(prefix="ncclkv-run-"))
        self._out = Lines(partial(self._write, 1), lambda rank, line: None)
        self._err = Lines(partial(self._write, 2), self._hear)
        self._own = LauncherLines()
        self._signals: list[int] = []
        self._asked: int | None = None
        self._limit: float | None = None
        self._start = time.monotonic()

    def run(self) -> Outcome:
        """Do so; only once.  Signals that would end this process end the job instead."""
        before = {number: signal.signal(number, self._note_signal) for number in _SIGNALS}
        try:
            self._open_pipes()
            alive = _pipe(self._folder / "runner")
            with self._begin() as process:
                try:
                    while process.poll() is None and not self._over(process):
                        self._read(_LOOK_SECONDS)
                finally:
                    os.close(alive)  # by which the ranks that are left are told to end
                    self._end(process)
                self._finish()
            words = list(self._own.kept)
            return Outcome(self._ranks, self._seconds(), process.returncode, words, self._asked)
        finally:
            self._selector.close()
            for pipe in self._pipes:
                os.close(pipe)
            shutil.rmtree(self._folder, ignore_errors=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin(self) -> subprocess.Popen[bytes]:
        """Start the launcher, in a session of its own, with which it can be ended."""
        libc = ctypes.CDLL(None)
        process = subprocess.Popen(
            [*self._line, str(self._folder), *self._command],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Not left behind by the sudden end of this process.
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        for number, stream in ((1, process.stdout), (2, process.stderr)):
            if stream is not None:
                self._listen(stream.fileno(), Whole(partial(self._pass_on, number)).feed)
        return process

    def _open_pipes(self) -> None:
        """Make the pipes that ranks of this machine write to, and hear what they say."""
        takers: dict[str, Callable[[bytes], None]] = {_EVENTS: Whole(self._take_event).feed}
        for number in self._ranks:
            takers[f"{number}.out"] = partial(self._out.feed, number)
            takers[f"{number}.err"] = partial(self._err.feed, number)
        for name, take in takers.items():
            self._pipes.append(_pipe(self._folder / name))
            self._listen(self._pipes[-1], take)

    def _listen(self, pipe: int, take: Callable[[bytes], None]) -> None:
        self._selector.register(pipe, selectors.EVENT_READ, take)

    def _read(self, seconds: float) -> bool:
        """Take what comes within so long; tell whether anything did."""
        found = False
        ready = [key for key, _ in self._selector.select(seconds)]
        # A rank's end after what it said before.
        for key in sorted(ready, key=lambda each: each.fd == self._pipes[0]):
            data = os.read(key.fd, _CHUNK)
            if data:
                found = True
                key.data(data)
            else:  # the launcher's own; others are open for writing here
                self._selector.unregister(key.fd)
        self._out.idle()
        self._err.idle()
        return found

    def _over(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it is time to end all that is left."""
        now = time.monotonic()
        if self._signals:
            number = self._signals.pop(0)
            if self._asked is not None:  # asked again: at once
                return True
            self._asked = number
            os.killpg(process.pid, number)
            self._limit = now + _ASKED_SECONDS
        if self._failed() and self._limit is None:
            self._limit = now + _FAILED_SECONDS
        ended = all(rank.code is not None for rank in self._ranks.values())
        return self._limit is not None and (ended or now > self._limit)

    def _failed(self) -> bool:
        """Whether any rank has failed, or says that it has."""
        return any(rank.failed() is not None for rank in self._ranks.values())

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """See that the launcher and the ranks are gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
            limit = time.monotonic() + _LAST_SECONDS
            while self._left(process) and time.monotonic() < limit:
                self._read(_LOOK_SECONDS)
        process.wait()

    def _left(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a process of the job is still there."""
        here = os.uname().nodename
        pids = [rank.pid for rank in self._ranks.values() if rank.host == here]
        return process.poll() is None or any(_runs(pid) for pid in pids)

    def _finish(self) -> None:
        """Take what has been written and not read."""
        while self._read(0):
            pass
        self._out.end()
        self._err.end()

    def _write(self, number: int, data: bytes) -> None:
        """Write to a stream of this process; where nobody reads it, end the job."""
        while data:
            try:
                data = data[os.write(number, data) :]
            except BlockingIOError:  # a terminal, which launchers may tell not to block
                select.select([], [number], [])
            except BrokenPipeError:
                self._signals.append(signal.SIGTERM)
                return

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _hear(self, rank: int, line: str) -> None:
        self._ranks[rank].hear(line, self._seconds())

    def _pass_on(self, number: int, line: str) -> None:
        """Write on a line of the launcher's, such as those of ranks on other machines."""
        if not self._own.is_noise(line):
            (self._out if number == 1 else self._err).between(f"{line}\n".encode())
            if match := re.match(r"ncclkv: rank (\d+) ", line):
                rank = self._ranks.get(int(match.group(1)))
                if rank is not None:
                    rank.hear(line, self._seconds())

    def _take_event(self, line: str) -> None:
        """Note what ``rank.py`` tells of a rank."""
        event, number, *rest = line.split()
        rank = self._ranks[int(number)]
        if event == "began":
            rank.pid, rank.host = int(rest[0]), rest[1]
        elif event == "stopped":
            rank.stopped = (int(rest[0]), self._seconds())
        elif event == "went-on":
            rank.stopped = None
        elif event == "ended":
            first = not self._failed()
            rank.code, rank.ended = int(rest[0]), self._seconds()
            if rank.code and first:  # ahead of what the others say of it
                self._err.between(f"ncclkv run: {rank} {how(rank.code)}\n".encode())


class Whole:
    """Makes lines, str without their ends, of bytes as they come."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._waits = b""

    def feed(self, data: bytes) -> None:
        """Take some."""
        *lines, self._waits = (self._waits + data).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))


def _pipe(path: Path) -> int:
    """A new pipe with a name, to read from; it does not end when those who write to it do."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
