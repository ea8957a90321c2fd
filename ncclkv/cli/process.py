"""Process calls of a supervisor: start a command, and end by the command's exit code or signal."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import struct
import termios
from collections.abc import Mapping
from contextlib import suppress

from ncclkv import env, notify
from ncclkv.cli import protocol

PR_SET_PDEATHSIG = 1

OF_THE_COMMAND = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which users, batch systems and launchers ask the command for something."""

_COMMAND_NOT_FOUND = 127


def wake_on_child_signals() -> int:
    """Return a descriptor that becomes readable when a child stops, continues or ends."""
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    signal.set_wakeup_fd(sink)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return source


def become(
    command: list[str],
    streams: Mapping[int, int],
    events: int,
    settings: Mapping[str, str],
    unless_set: Mapping[str, str],
) -> None:
    """Replace this process by the command, with variables beside its own; does not return."""
    for each in (*OF_THE_COMMAND, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    # Without this the command outlives a supervisor that is killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor, stream in streams.items():
        os.dup2(stream, descriptor)
    os.set_inheritable(events, True)
    pipe = {notify.PIPE: f"{events}:{os.fstat(events).st_ino}"}
    variables = env.for_ranks({**settings, **pipe}, unless_set)
    variables.pop(protocol.SECRET, None)
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        os.write(2, f"ncclkv: {command[0]} cannot be started: {error}\n".encode())
        os._exit(_COMMAND_NOT_FOUND)


def end_like(code: int) -> int:
    """Return the command's exit code; if a signal ended the command, end this process by it."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's own dump is enough
        with suppress(OSError):  # SIGKILL has no other disposition
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def readable_bytes(pipe: int) -> int:
    """Return the count of bytes in a pipe; processes that share the pipe may write more."""
    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return count


def write(descriptor: int, data: bytes) -> None:
    """Write all of `data`; a closed pipe is no error."""
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]
