"""Supervise one rank: start the command, send its output and its end to ``ncclkv run``.

mpirun starts ``python supervisor.py ADDRESS COMMAND ...``.  Before the address may stand
``--torch-env``, and ``--alone`` without mpirun: variables of launchers then belong to another job.

Launchers report the end of a rank late, wrongly or not at all, and kill the other ranks at once.
The supervisor reports the end by a connection of its own.  The launcher sees the exit of the
supervisor, which is delayed: the other ranks have time to raise their errors.  Without a connection
the launcher forwards the output, and no end is reported.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).parent


def _skip_package_imports() -> None:
    """Replace the packages' ``__init__`` by empty modules: the files import NumPy."""
    for name, folder in (("ncclkv", _HERE.parent), ("ncclkv.cli", _HERE)):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


if __name__ == "__main__":
    _skip_package_imports()

from ncclkv import concurrency, env  # noqa: E402
from ncclkv.cli import descendants, process, protocol, rank_pages, torch_env  # noqa: E402
from ncclkv.cli.link import FULL_BYTES, Link, RunnerEnded, connect  # noqa: E402

ALONE = "--alone"
"""Argument of the only rank of a job without a launcher."""

TORCH_ENV = "--torch-env"
"""Argument for a command that gets torch's variables."""

GRACE = 2.0
"""Seconds for the other ranks to print their errors, before the launcher sees a failure."""

PATIENCE = 10.0
"""Seconds by which an exit code of 0 is delayed while other ranks run.

Some launchers kill the other ranks for an early exit.
"""

CONNECT_SECONDS = 10.0

MASTER_SECONDS = 30.0
"""Seconds for the address of torch's rank 0, whose host may start later than this one."""

_EVENT_BYTES = 4096


class Supervisor:
    """Runs a command as one rank of a job.

    Parameters
    ----------
    rank : int
    link : Link or None
        The connection to the runner; None leaves output to the launcher.
    """

    def __init__(self, rank: int, link: Link | None) -> None:
        self._rank = rank
        self._link = link
        self._child = 0
        self._code: int | None = None
        self._master = ""
        self._released = False
        self._killed = False
        self._events = b""
        self._sources: dict[int, bytes] = {}
        self._child_events = process.wake_on_child_signals()

    def meet(self) -> str:
        """Return address and port for the ranks of torch, from rank 0; empty if none arrive."""
        if self._rank == 0:
            self._send(protocol.MASTER, f"{os.uname().nodename} {torch_env.free_port()}".encode())
        limit = concurrency.monotonic() + MASTER_SECONDS
        while not self._master and self._link and (left := limit - concurrency.monotonic()) > 0:
            self._turn(left)
        if not self._master:
            _warn(self._rank, "got no address of rank 0: MASTER_ADDR and MASTER_PORT are not set")
        return self._master

    def run(
        self, command: list[str], settings: Mapping[str, str], unless_set: Mapping[str, str]
    ) -> int:
        """Run the command to its end, with variables; return its exit code, signals negative."""
        self._start(command, settings, unless_set)
        while self._code is None:
            self._turn(None)
        descendants.end_all()
        for source in tuple(self._sources):
            unread = process.readable_bytes(source)
            while unread > 0:
                unread -= self._read(source)
        self._send(protocol.ENDED, b"%d" % self._code)
        begin = concurrency.monotonic()
        while (left := begin + self._delay() - concurrency.monotonic()) > 0:
            self._turn(left)
        if self._killed:  # kill also the processes that the command left in this group
            os.killpg(0, signal.SIGKILL)
        return self._code

    def _delay(self) -> float:
        """Return the seconds from the command's end to this process's end."""
        unsent = self._link is not None and self._link.unsent
        if self._released:
            return GRACE if unsent else 0.0
        if self._code or self._link is None:
            return PATIENCE if unsent else GRACE if self._code else 0.0
        return PATIENCE

    def _start(
        self, command: list[str], settings: Mapping[str, str], unless_set: Mapping[str, str]
    ) -> None:
        """Start the command with pipes as its streams, or with those of this process."""
        outs = {1: protocol.OUT, 2: protocol.ERR} if self._link is not None else {}
        pipes = {descriptor: os.pipe() for descriptor in outs}
        events, events_sink = os.pipe()
        os.set_blocking(events_sink, False)
        self._child = os.fork()
        if self._child == 0:
            sinks = {descriptor: pipe[1] for descriptor, pipe in pipes.items()}
            process.become(command, sinks, events_sink, settings, unless_set)
        os.close(events_sink)
        for descriptor, (source, sink) in pipes.items():
            os.close(sink)
            self._sources[source] = outs[descriptor]
        self._sources[events] = protocol.EVENT
        self._send(protocol.BEGAN, f"{self._child} {os.uname().nodename}".encode())

    def _turn(self, seconds: float | None) -> None:
        """Wait for an event up to `seconds`, and process it."""
        link = self._link
        readers: list[int | Link] = [self._child_events]
        if link is None or len(link.unsent) <= FULL_BYTES:
            readers += self._sources
        writers = [link] if link is not None and link.unsent else []
        if link is not None:
            readers.append(link)
        ready, writable, _ = select.select(readers, writers, [], seconds)
        if link is not None:
            with self._link_errors():
                if writable:
                    link.flush()
                for kind, data in link.receive() if link in ready else ():
                    self._obey(kind, data)
        for source in self._sources.keys() & ready:
            self._read(source)
        if self._child_events in ready:
            os.read(self._child_events, 4096)
            self._reap()

    def _obey(self, kind: bytes, data: bytes) -> None:
        """Process a frame of the runner; the end of a killed command is still reported."""
        if kind == protocol.MASTER:
            self._master = data.decode()
        elif kind == protocol.SIGNAL and self._child and self._code is None:
            os.kill(self._child, int(data))
        elif kind == protocol.LOOK:
            pages = rank_pages.pack(data.decode())
            for start in range(0, len(pages), protocol.CHUNK):
                self._send(protocol.PAGES, pages[start : start + protocol.CHUNK])
            self._send(protocol.PAGES, b"")
        elif kind in (protocol.KILL, protocol.ALL_ENDED):
            self._released = True
        if kind == protocol.KILL:
            self._killed = True
            if not self._child:  # the command has not begun
                os.killpg(0, signal.SIGKILL)
            if self._code is None:
                os.kill(self._child, signal.SIGKILL)

    @contextmanager
    def _link_errors(self) -> Iterator[None]:
        """Continue without the runner after a network failure; end this process after its end."""
        try:
            yield
        except RunnerEnded:
            descendants.end_all()
            os.killpg(0, signal.SIGKILL)
        except OSError as error:
            self._link = None
            _warn(self._rank, f"lost its connection to the runner ({error})")

    def _read(self, source: int) -> int:
        """Forward up to a frame from one of the command's pipes; return its length."""
        data = os.read(source, protocol.CHUNK)
        kind = self._sources[source]
        if not data:
            del self._sources[source]
            os.close(source)
        elif kind != protocol.EVENT:
            self._send(kind, data)
        else:
            *lines, rest = (self._events + data).split(b"\n")
            self._events = rest[-_EVENT_BYTES:]
            for line in filter(None, lines):
                self._send(protocol.EVENT, line[:_EVENT_BYTES])
        return len(data)

    def _send(self, kind: bytes, data: bytes) -> None:
        """Send a frame to the runner.

        Without a connection, output is written to the launcher's streams, and other frames are
        dropped.
        """
        if self._link is not None:
            with self._link_errors():
                self._link.send(kind, data)
        elif kind in (protocol.OUT, protocol.ERR):
            process.write(1 if kind == protocol.OUT else 2, data)

    def _reap(self) -> None:
        """Process stops, continuations and the end of the command."""
        descendants.reap(but=self._child)
        while self._code is None:
            pid, status = os.waitpid(self._child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                self._send(protocol.STOPPED, b"%d" % os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                self._send(protocol.CONTINUED, b"")
            else:
                self._code = os.waitstatus_to_exitcode(status)


def main(options: Set[str], address: str, command: list[str]) -> int:
    """Run `command` as a rank; return its exit code, or end by the same signal as the command."""
    alone = ALONE in options
    rank = 0 if alone else env.launched_rank() or 0
    # Launchers signal all processes of a rank: the command decides whether it ends.
    for signum in process.OF_THE_COMMAND:
        signal.signal(signum, signal.SIG_IGN)
    descendants.adopt()
    link = None
    try:
        secret = env.for_ranks({}, {}).get(protocol.SECRET, "")
        link = connect(address, rank, secret.encode(), CONNECT_SECONDS)
    except OSError as error:
        _warn(
            rank,
            f"cannot reach the runner at {address} ({error}): its output passes through mpirun, "
            f"and its end is not reported. Name the hosts with --hosts, or open a port and give "
            f"--port",
        )
    supervisor = Supervisor(rank, link)
    local_size, local_rank = (1, 0) if alone else env.local_place()
    settings: dict[str, str] = {}
    unless_set = torch_env.local_variables(local_rank, local_size)
    if TORCH_ENV in options:
        size = 1 if alone else env.launched_size() or 1
        # A place that the user has set may be that of a batch script, and would hold on every rank.
        place = unless_set
        settings, unless_set = torch_env.variables(rank, size, supervisor.meet())
        settings |= place
    code = supervisor.run(command, settings, unless_set)
    if code and link is None:
        _warn(rank, f"failed: {f'exit code {code}' if code > 0 else f'signal {-code}'}")
    return process.end_like(code)


def _warn(rank: int, text: str) -> None:
    """Write a line to the launcher's stderr."""
    host = os.uname().nodename
    process.write(2, f"ncclkv run: rank {rank} on {host} {text}\n".encode())


if __name__ == "__main__":
    given = {word for word in sys.argv[1:3] if word in (ALONE, TORCH_ENV)}
    sys.exit(main(given, sys.argv[1 + len(given)], sys.argv[2 + len(given) :]))
