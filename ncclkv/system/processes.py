"""State and end of other processes of this machine, by Linux."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path

_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "Z": "has ended", "X": "has ended"}
"""States in ``/proc/PID/stat`` in which a process makes its peers wait."""

_CAUSES = {
    signal.SIGKILL: "often the kernel's out-of-memory killer: see dmesg",
    signal.SIGBUS: "often a full /dev/shm: see df /dev/shm",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGTERM: "sent by a user or a batch system",
}

_EXIT_CODE = 49
"""Index of the exit code in ``/proc/PID/stat``, after the program's name."""


@cache
def namespace() -> int:
    """Return the id of this process's PID namespace; 0 if it is unknown.

    A process id has a meaning only for processes of the same namespace.
    """
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


class Process:
    """Another process of this machine.

    Parameters
    ----------
    pid : int
        Its id in this process's namespace.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor: int | None = None

    def has_ended(self) -> bool:
        """Return whether the process has ended, or is about to."""
        if self._descriptor is None:
            try:
                self._descriptor = os.pidfd_open(self._pid)
            except ProcessLookupError:
                return True
            except (OSError, AttributeError):  # an old kernel, or no more descriptors
                return "has ended" in self.state()
        looked = select.poll()
        looked.register(self._descriptor, select.POLLIN)
        return bool(looked.poll(0))

    def signal(self, signum: int) -> None:
        """Send a signal, if the process still runs.

        The descriptor protects a later process with the same id.  Kernels before 5.3 have no
        descriptors, and the signal is sent to the id.
        """
        if self.has_ended():
            return
        with suppress(OSError):
            if self._descriptor is None:
                os.kill(self._pid, signum)
            else:
                signal.pidfd_send_signal(self._descriptor, signum)

    def state(self) -> str:
        """Describe the process if it is stopped or has ended; else return an empty text."""
        words = stat_of(self._pid)
        return _STATES.get(words[0], "") if words else "has ended"

    def end(self) -> str:
        """Describe its end, as long as the system keeps the exit code."""
        words = stat_of(self._pid)
        code = int(words[_EXIT_CODE]) if len(words) > _EXIT_CODE and words[0] in "ZX" else None
        if not code:
            return "has ended"
        if os.WIFSIGNALED(code):
            return f"was killed by signal {os.WTERMSIG(code)}"
        return f"has ended with exit code {os.WEXITSTATUS(code)}"


@cache
def process(pid: int) -> Process:
    """Return the process of an id; a single object each, since it holds a descriptor."""
    return Process(pid)


def stat_of(pid: int) -> list[str]:
    """Return the words of ``/proc/PID/stat`` after the program's name; none after its end."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def how(code: int) -> str:
    """Describe the end of a process.

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
