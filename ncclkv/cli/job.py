"""Job: one start of a command on several ranks, its output and its end."""

from __future__ import annotations

import ctypes
import math
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from ncclkv import concurrency, env, notify
from ncclkv.cli import protocol, torch_env
from ncclkv.cli.connections import Connections
from ncclkv.cli.descendants import adopt, children, end_all
from ncclkv.cli.launcher_output import LauncherStream
from ncclkv.cli.leftovers import Leftovers, shortage
from ncclkv.cli.outcome import Outcome, Rank, never_started
from ncclkv.cli.output import Output
from ncclkv.cli.process import PR_SET_PDEATHSIG
from ncclkv.cli.silence import Silence
from ncclkv.cli.status_socket import StatusSocket
from ncclkv.cli.supervisor import ALONE, TORCH_ENV
from ncclkv.system.processes import how, stat_of

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_ENDING = (signal.SIGINT, signal.SIGTERM)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals to this process that end the job, and signals to the commands of all ranks."""

_KEPT_LINES = 40
_POLL_SECONDS = 0.1

_INTERRUPTED_SECONDS = 5.0
"""Seconds from a signal to this process, which the ranks receive too, to the ranks' SIGKILL."""

_FAILED_SECONDS = 3.0
"""Seconds from a rank's failure to the other ranks' SIGKILL; supervisors exit 1 s earlier.

Ranks that all wait in MPI's start have nothing to print, and get SIGKILL at once.
"""

_LAUNCHER_SECONDS = 10.0
"""Seconds for the launcher to end by itself once all ranks ended with exit code 0."""

_KILL_SECONDS = 2.0
"""Seconds for the launcher to end after SIGTERM, and again after SIGKILL.

The ranks get SIGKILL at once, from their supervisors.
"""

_LAST_READS = 16
"""Passes over all connections before running ranks count as killed; ranks may write for ever."""

_OUTPUT_SECONDS = 2.0
"""Seconds for the last output to arrive after the end of the launcher."""


class Start(NamedTuple):
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
    places : sequence of str
        The host of each rank; empty where the launcher chooses.
    timeout : float
        Seconds for which a supervisor may be stopped after the end of its rank.
    torch_env : bool
        True if the ranks get the variables of torch.distributed.
    """

    ranks: int
    launcher: Sequence[str]
    command: Sequence[str]
    environment: Mapping[str, str]
    port: int | None = None
    output: Path | None = None
    places: Sequence[str] = ()
    timeout: float = env.DEFAULT_TIMEOUT
    torch_env: bool = False


class Job:
    """Starts a command on several ranks, and waits for the end of all.

    Raises
    ------
    OSError
        When the port cannot be bound.
    """

    def __init__(self, start: Start) -> None:
        places = start.places or [""] * start.ranks
        self._ranks = {rank: Rank(rank, place=places[rank]) for rank in range(start.ranks)}
        self._start = start
        self._selector = selectors.DefaultSelector()
        self._connections = Connections(start.ranks, start.port, self._selector, self._take)
        self._output = Output(
            lambda rank, line: self._ranks[rank].keep_line(line),
            partial(self._note_signal, signal.SIGTERM),
            start.output,
        )
        self._status = StatusSocket(self._ranks, self._connections, self._selector)
        self._launcher_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._streams = [
            LauncherStream(partial(self._output.between, kind), self._launcher_lines.append)
            for kind in (protocol.OUT, protocol.ERR)
        ]
        self._signals: list[int] = []
        self._interrupted_by: int | None = None
        self._limit: float | None = None
        self._launcher_limit: float | None = None
        self._hung = False
        self._silence = Silence(start.timeout)
        self._start_time = concurrency.monotonic()

    def run(self) -> Outcome:
        """Run the job, once.  Signals that would end this process end the job instead."""
        before = {
            signum: signal.signal(signum, self._note_signal) for signum in (*_ENDING, *_PASSED_ON)
        }
        adopt()
        spared = children()
        try:
            leftovers = Leftovers()
            if self._start.launcher and (warning := shortage(len(self._ranks))):
                self._output.between(protocol.ERR, warning)
            with self._start_launcher() as process:
                try:
                    while process.poll() is None and not self._over(process):
                        self._read(_POLL_SECONDS)
                        leftovers.update(process.pid)
                finally:
                    self._end(process)
                    end_all(spared)
                    leftovers.remove(process.pid)
                self._finish()
            code = 0 if self._hung else process.returncode
            lines = [*self._launcher_lines]
            return Outcome(self._ranks, self._seconds(), code, lines, self._interrupted_by)
        finally:
            self._status.close()
            self._connections.close()
            self._selector.close()
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _start_launcher(self) -> subprocess.Popen[bytes]:
        """Start the launcher in a new session, whose process group can be killed at once."""
        libc = ctypes.CDLL(None)
        options = [ALONE] * (not self._start.launcher) + [TORCH_ENV] * self._start.torch_env
        supervisor = [
            sys.executable,
            "-I",
            "-S",
            str(_SUPERVISOR),
            *options,
            self._connections.address,
        ]
        process = subprocess.Popen(
            [*self._start.launcher, *supervisor, *self._start.command],
            env={**self._start.environment, protocol.SECRET: self._connections.secret},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # Without this the launcher outlives a runner that is killed.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        for pipe, stream in zip((process.stdout, process.stderr), self._streams, strict=True):
            if pipe is not None:
                call = partial(self._read_launcher, pipe.fileno(), stream)
                self._selector.register(pipe, selectors.EVENT_READ, call)
        return process

    def _read(self, seconds: float) -> bool:
        """Wait for data for up to `seconds`, and read them; return whether any arrived."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            key.data()
        self._connections.pause(self._output.idle())
        return bool(ready)

    def _read_launcher(self, pipe: int, stream: LauncherStream) -> None:
        data = os.read(pipe, protocol.CHUNK)
        if data:
            stream.feed(data)
        else:
            self._selector.unregister(pipe)

    def _over(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether the launcher and the remaining ranks must be ended now."""
        now = concurrency.monotonic()
        while self._signals:
            signum = self._signals.pop(0)
            if signum in _PASSED_ON:
                self._connections.send(protocol.SIGNAL, b"%d" % signum)
                continue
            if self._interrupted_by is not None:  # a second signal ends the job at once
                return True
            self._interrupted_by = signum
            os.killpg(process.pid, signum)
            self._limit = now + _INTERRUPTED_SECONDS
        self._silence.look(self._ranks.values(), self._seconds())
        self._status.look()
        if self._failed() and self._limit is None:
            self._limit = now + _FAILED_SECONDS
        ended = all(rank.over for rank in self._ranks.values())
        if self._limit is not None:
            return ended or now > self._limit or (self._failed() and self._all_in_mpi_start())
        if ended and self._launcher_limit is None:
            self._connections.send(protocol.ALL_ENDED)
            succeeded = all(rank.code == 0 for rank in self._ranks.values())
            self._launcher_limit = now + (_LAUNCHER_SECONDS if succeeded else math.inf)
        self._hung = self._launcher_limit is not None and now > self._launcher_limit
        if self._hung:
            late = f"had not ended {_LAUNCHER_SECONDS:g} s after its ranks, and was killed"
            self._output.between(protocol.ERR, f"ncclkv run: the launcher {late}")
        return self._hung

    def _failed(self) -> bool:
        """Return whether a rank has failed, or ended before MPI's start while others wait there."""
        ranks = self._ranks.values()
        return any(rank.failed() is not None for rank in ranks) or any(
            rank.code == 0 for rank in never_started(ranks)
        )

    def _all_in_mpi_start(self) -> bool:
        """Return whether all running ranks are in MPI's start, which waits for every rank."""
        running = [rank for rank in self._ranks.values() if not rank.over]
        return all(rank.mpi == notify.MPI_BEGINS for rank in running)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the ranks by their supervisors, the launcher by a signal; waits for their ends."""
        # A supervisor's end is read after its last output: in one pass only one of the two.
        for _ in range(_LAST_READS):
            if not self._read(0):
                break
        for rank in self._ranks.values():
            rank.killed = not rank.over
        self._connections.send(protocol.KILL)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, signum)
            limit = concurrency.monotonic() + _KILL_SECONDS
            while self._still_runs(process) and concurrency.monotonic() < limit:
                self._read(_POLL_SECONDS)
        process.wait()

    def _still_runs(self, process: subprocess.Popen[bytes]) -> bool:
        """Return whether a process of the job still runs."""
        here = os.uname().nodename
        states = [stat_of(rank.pid)[:1] for rank in self._ranks.values() if rank.host == here]
        return process.poll() is None or any(state not in ([], ["Z"], ["X"]) for state in states)

    def _finish(self) -> None:
        """Read the remaining output; a network may still be delivering it."""
        limit = concurrency.monotonic() + _OUTPUT_SECONDS
        self._read(0)
        while self._connections.open and concurrency.monotonic() < limit:
            self._read(_POLL_SECONDS)
        while self._read(0):
            pass
        for stream in self._streams:
            stream.end()
        self._output.end()

    def _note_signal(self, signum: int, frame: FrameType | None = None) -> None:
        self._signals.append(signum)

    def _seconds(self) -> float:
        return concurrency.monotonic() - self._start_time

    def _take(self, index: int, kind: bytes, data: bytes) -> None:
        """Process a frame of a rank's supervisor, or the end of its connection."""
        if kind in (protocol.OUT, protocol.ERR):
            self._output.feed(index, kind, data)
            return
        if kind == protocol.PAGES:
            self._status.take(index, data)
            return
        rank = self._ranks[index]
        is_first = not self._failed()
        text = data.decode(errors="replace")
        if kind == protocol.MASTER:
            host, _, port = text.partition(" ")
            found = torch_env.address(host, rank.place, several=self._start.port is not None)
            self._connections.send(protocol.MASTER, f"{found} {port}".encode(), also_later=True)
            return
        if not rank.take(kind, text, self._seconds()) and not rank.warned:
            rank.warned = True
            line = f"ncclkv run: {rank} wrote to the pipe in {notify.PIPE}; ignored: {text[:80]!r}"
            self._output.between(protocol.ERR, line)
        if kind == protocol.ENDED and rank.code and is_first:
            # Before the errors of the other ranks.
            self._output.between(protocol.ERR, f"ncclkv run: {rank} {how(rank.code)}")
