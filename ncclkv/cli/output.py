"""Output of the ranks: written to the streams of this process, and to a file a rank."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from functools import partial
from io import FileIO, TextIOWrapper
from pathlib import Path

from ncclkv.cli.lines import Lines
from ncclkv.cli.protocol import ERR, OUT

_SUFFIXES = {OUT: "out", ERR: "err"}


class Output:
    """Both streams of all ranks.

    Parameters
    ----------
    keep : callable
        ``keep(rank, line)`` gets each whole line of stderr.
    stop : callable
        Called without arguments when a stream of this process can no longer be written.
    folder : Path or None
        Folder with a file for each stream of a rank, as in `path_of`; output is appended unchanged.
    """

    def __init__(
        self, keep: Callable[[int, str], None], stop: Callable[[], None], folder: Path | None = None
    ) -> None:
        self._stop = stop
        self._folder = folder
        self._reported = False
        self._lines = {
            OUT: Lines(partial(self._write, 1), lambda rank, line: None),
            ERR: Lines(partial(self._write, 2), keep),
        }

    def feed(self, rank: int, kind: bytes, data: bytes) -> None:
        """Process a rank's output to its stream `kind`, `protocol.OUT` or `protocol.ERR`."""
        if self._folder is not None:
            try:
                # Opened each time: a job may have more ranks than a process may have open files.
                with path_of(self._folder, rank, kind).open("ab", buffering=0) as file:
                    file.write(data)
            except OSError as error:
                self._folder = None
                self.between(ERR, f"ncclkv run: no more output is kept in files: {error}")
        self._lines[kind].feed(rank, data)

    def between(self, kind: bytes, line: str) -> None:
        """Write a line that belongs to no rank."""
        self._lines[kind].between(f"{line}\n".encode())

    def idle(self) -> set[int]:
        """Write lines that waited long enough; return the ranks to stop reading from."""
        for lines in self._lines.values():
            lines.idle()
        return self._lines[OUT].to_pause | self._lines[ERR].to_pause

    def end(self) -> None:
        """Write all lines that wait, at the end of the streams."""
        for lines in self._lines.values():
            lines.end()

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write to a stream of this process; waits while the stream takes nothing."""
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # a terminal that a launcher has made non-blocking
                select.select([], [descriptor], [])
            except OSError as error:  # such as a closed pipe, or a file on a full disk
                self._stop()
                if not isinstance(error, BrokenPipeError) and not self._reported:
                    self._reported = True
                    name, other = ("stdout", ERR) if descriptor == 1 else ("stderr", OUT)
                    self.between(other, f"ncclkv run: {name} cannot be written: {error}")
                return


def open_missing_streams() -> None:
    """Open the null device for each closed standard stream, whose descriptor a socket would get."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, this one
            os.set_inheritable(descriptor, True)
            null = FileIO(descriptor, "r" if descriptor == 0 else "w", closefd=False)
            setattr(sys, name, TextIOWrapper(null))


def path_of(folder: Path, rank: int, kind: bytes) -> Path:
    """Return the file of a rank's stream.

    Examples
    --------
    >>> path_of(Path("logs"), 3, ERR).name
    'rank-3.err'
    """
    return folder / f"rank-{rank}.{_SUFFIXES[kind]}"


def create_files(folder: Path, ranks: int) -> None:
    """Create the folder and an empty file for each stream of each rank.

    Raises
    ------
    OSError
        When the folder or a file cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        for kind in _SUFFIXES:
            path_of(folder, rank, kind).write_bytes(b"")
