"""What becomes of the processes that this one shares memory with."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path

_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "Z": "has ended", "X": "has ended"}
"""What the letters of ``/proc/PID/stat`` mean, where that says why others wait."""

_EXIT_CODE = 49
"""Which word of it, behind the name of the program, says how a process has ended."""


@cache
def namespace() -> int:
    """What processes have alike that know each other by numbers; 0 where nobody can tell."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


class Process:
    """Another process of this machine.

    Parameters
    ----------
    number : int
        Its number, seen from here.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._descriptor: int | None = None

    def has_ended(self) -> bool:
        """Whether it is gone, or about to be."""
        if self._descriptor is None:
            try:
                self._descriptor = os.pidfd_open(self._number)
            except ProcessLookupError:
                return True
            except (OSError, AttributeError):  # an old kernel, or no more descriptors
                return "has ended" in self.state()
        looked = select.poll()
        looked.register(self._descriptor, select.POLLIN)
        return bool(looked.poll(0))

    def signal(self, number: int) -> None:
        """Send a signal, if the process still runs.

        It goes by the descriptor, so a later process that was given the same number gets none.
        Without a descriptor (a kernel before 5.3) it goes by the number.
        """
        if self.has_ended():
            return
        with suppress(OSError):
            if self._descriptor is None:
                os.kill(self._number, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)

    def state(self) -> str:
        """Why others wait for it, as far as the system can tell; else empty."""
        words = _stat(self._number)
        return _STATES.get(words[0], "") if words else "has ended"

    def end(self) -> str:
        """How it has ended, while the system still knows."""
        words = _stat(self._number)
        code = int(words[_EXIT_CODE]) if len(words) > _EXIT_CODE and words[0] in "ZX" else None
        if not code:
            return "has ended"
        if os.WIFSIGNALED(code):
            return f"was killed by signal {os.WTERMSIG(code)}"
        return f"has ended with exit code {os.WEXITSTATUS(code)}"


@cache
def process(number: int) -> Process:
    """The process of that number: one for all who ask, for it takes a descriptor."""
    return Process(number)


def _stat(number: int) -> list[str]:
    """What the system says of a process, behind its name; nothing when it is gone."""
    try:
        text = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
