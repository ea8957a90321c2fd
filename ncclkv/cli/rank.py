"""What mpirun starts for each rank: it starts the command, and tells how that ended.

``python rank.py FOLDER COMMAND ...``, a program by itself.  Launchers tell of a rank's end late, or
wrongly, or not at all, and end the others at once.  So this process stands between: what the
command writes and how it ends goes to the runner by pipes with names in FOLDER, and the launcher
sees the end only after a moment in which the other ranks can say what they miss.  Where FOLDER is
not, on another machine than the runner's, both go the launcher's way.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

GRACE = 2.0
"""Seconds for the other ranks to say what they miss, before the launcher learns of a failure."""

_PR_SET_PDEATHSIG = 1
_COMMAND_NOT_FOUND = 127


def main(folder: Path, command: list[str]) -> int:
    """Start `command`; return its exit code, or end by the signal that it ended by."""
    rank = _rank()
    # Launchers signal all of a rank's processes: the command decides what becomes of it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    events = _open(folder / "events")
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        _become(command, [_open(folder / f"{rank}.{name}") for name in ("out", "err")])
    _tell(events, f"began {rank} {child} {os.uname().nodename}")
    code = _watch(child, rank, ended, _open_to_read(folder / "runner"), events)
    _tell(events, f"ended {rank} {code}")
    if code and events is None:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        sys.stderr.write(
            f"ncclkv: rank {rank} on {os.uname().nodename} (pid {child}) failed, ending the job: "
            f"{how}\n"
        )
        sys.stderr.flush()
    if code:
        time.sleep(GRACE)
    return _end_like(code)


def _watch(child: int, rank: int, ended: int, runner: int | None, events: int | None) -> int:
    """Wait for the command's end, or end it with the runner; return its code, signals negative."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if not pid:
            ready, _, _ = select.select([ended] if runner is None else [ended, runner], [], [])
            if runner in ready:
                os.killpg(0, signal.SIGKILL)
            os.read(ended, 4096)
        elif os.WIFSTOPPED(status):
            _tell(events, f"stopped {rank} {os.WSTOPSIG(status)}")
        elif os.WIFCONTINUED(status):
            _tell(events, f"went-on {rank}")
        else:
            return os.waitstatus_to_exitcode(status)


def _become(command: list[str], streams: list[int | None]) -> None:
    """Go on as the command; does not return."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    # Should this process be killed alone, the command is not left behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, stream in enumerate(streams, 1):
        if stream is not None:
            os.dup2(stream, number)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"ncclkv: {command[0]} cannot be started: {error}\n".encode())
        os._exit(_COMMAND_NOT_FOUND)


def _end_like(code: int) -> int:
    """The exit code of this process; does not return where the command ended by a signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's own dump is enough
        with suppress(OSError):  # SIGKILL has no other disposition
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _open(path: Path) -> int | None:
    """The end to write to of a pipe that the runner reads; None where there is no runner."""
    try:
        # Blocking, it would wait for a reader, who may be on another machine of the same disk.
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
    os.set_blocking(pipe, True)
    return pipe


def _open_to_read(path: Path) -> int | None:
    """The end to read of a pipe that the runner keeps open as long as it runs."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _tell(events: int | None, line: str) -> None:
    """Send the runner a line, in one piece; it may be gone."""
    if events is not None:
        with suppress(OSError):
            os.write(events, f"{line}\n".encode())


def _rank() -> int:
    """Which rank the launcher says this is; 0 where none does, for it is the only one."""
    # The package without its front page, which imports NumPy: this process does nothing but wait.
    package = ModuleType("ncclkv")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["ncclkv"] = package
    from ncclkv import env

    return env.launched_rank() or 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
