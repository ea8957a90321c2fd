"""Show the ranks of a running job: the last call of each, its line, and for whom it waits."""

from __future__ import annotations

import argparse
import socket
import sys
from contextlib import suppress
from pathlib import Path

from ncclkv.cli.status_socket import PREFIX
from ncclkv.errors import LaunchError

_SECONDS = 10.0
"""Seconds for the runner to answer."""

_SOCKETS = Path("/proc/net/unix")


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
        listed = ", ".join(map(str, running))
        raise LaunchError(
            f"several jobs of ncclkv run are here; name one: ncclkv status PID ({listed})"
        )
    pid = arguments.pid if arguments.pid is not None else next(iter(running), None)
    if pid not in running:
        which = "no job of ncclkv run" if pid is None else f"no ncclkv run of process {pid}"
        others = f" (running: {', '.join(map(str, running))})" if running else ""
        raise LaunchError(
            f"{which} runs on this machine{others}; the command shows jobs that ncclkv run has "
            f"started here"
        )
    sys.stdout.write(_answer(pid))
    return 0


def runners() -> list[int]:
    """Return the process numbers of the runners of this machine."""
    found = set()
    with suppress(OSError):
        for line in _SOCKETS.read_text(errors="replace").splitlines():
            name = line.rpartition(" ")[2]
            if name.startswith(f"@{PREFIX}") and name[len(PREFIX) + 1 :].isdecimal():
                found.add(int(name[len(PREFIX) + 1 :]))
    return sorted(found)


def _answer(pid: int) -> str:
    """Return the table of a runner."""
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
            f"ncclkv run of process {pid} gives no answer: it belongs to another user, or is ending"
        )
    return text
