"""Show the ranks of a running job: the last call of each, its line, and for whom it waits."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

from ncclkv.cli.status_socket import PREFIX
from ncclkv.errors import LaunchError

_SECONDS = 10.0
"""Seconds for the runner to answer."""

_SOCKETS = Path("/proc/net/unix")

_WIDTH = 60
"""Most characters of a command in the list of jobs."""


def describe(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "pid",
        nargs="?",
        type=int,
        help="process number of ncclkv run on this machine; needed where several jobs run",
    )
    parser.epilog = (
        "A wait is shown a quarter of a second after its begin. The ranks take no part in the "
        "answer: a rank that is stopped or hangs is shown, too."
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the table; return 0.

    Raises
    ------
    LaunchError
        When no such job runs, or several do and none is named.
    """
    running = runners()
    if arguments.pid is None and len(running) > 1:
        listed = "; ".join(f"ncclkv status {pid} ({_command(pid)})" for pid in running)
        raise LaunchError(f"several jobs of ncclkv run are here; type one of: {listed}")
    pid = arguments.pid if arguments.pid is not None else next(iter(running), None)
    if pid not in running:
        which = "no job of ncclkv run" if pid is None else f"no ncclkv run of process {pid}"
        others = f" (running: {', '.join(map(str, running))})" if running else ""
        raise LaunchError(
            f"{which} of this user runs on this machine{others}; the command shows jobs that "
            f"ncclkv run has started here"
        )
    sys.stdout.write(_answer(pid))
    return 0


def runners() -> list[int]:
    """Return the process ids of the runners of this machine that answer this user."""
    found = set()
    with suppress(OSError):
        for line in _SOCKETS.read_text(errors="replace").splitlines():
            name = line.rpartition(" ")[2]
            if name.startswith(f"@{PREFIX}") and name[len(PREFIX) + 1 :].isdecimal():
                found.add(int(name[len(PREFIX) + 1 :]))
    return sorted(pid for pid in found if os.geteuid() in (0, _user(pid)))


def _user(pid: int) -> int | None:
    """Return the user of a process; None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _command(pid: int) -> str:
    """Return the begin of the command that a runner has started."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return "ended"
    ours = words.index("run") + 1 if "run" in words else 0
    return textwrap.shorten(" ".join(words[ours:]), _WIDTH, placeholder=" ...")


def _answer(pid: int) -> str:
    """Wait for the answer of a runner, and return its table."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        pieces = []
        try:
            connection.connect(f"\0{PREFIX}{pid}")
            while piece := connection.recv(1 << 16):
                pieces.append(piece)
        except OSError as error:
            raise LaunchError(f"ncclkv run of process {pid} does not answer: {error}") from None
    text = b"".join(pieces).decode(errors="replace")
    if not text:
        raise LaunchError(
            f"ncclkv run of process {pid} gives no answer: a job of it ends, or starts again; type "
            f"the command again"
        )
    return text
