"""Last words: a process outside of the launcher's process group writes a text of this process.

A launcher kills all ranks when one of them crashes in MPI's start.  The rank that holds the rows
would end without a word, or within its table.  The other process writes what this one has given it
as a whole, and a text for the worst case if this one is killed before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_END = b"\0"
"""Byte after a text that was given as a whole."""


@contextmanager
def written_though_killed(text: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes to standard output, also if this process is killed in it.

    The function may be called once, and raises the OSError of standard output.  If this process is
    killed before the call, `text` is written.
    """
    worst = os.fsencode(text)
    source, sink = os.pipe()
    problem, told = os.pipe()
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(sink)
            os.close(problem)
            _write(source, told, worst)
        os._exit(0)
    os.waitpid(first, 0)
    os.close(source)
    os.close(told)
    given = False

    def write(text: str) -> None:
        nonlocal given
        given = True
        _write_all(sink, os.fsencode(text) + _END)
        if number := os.read(problem, 1):  # waits for the end of the other process
            raise OSError(number[0], os.strerror(number[0]), "standard output")

    try:
        yield write
    finally:
        if not given:
            write("")
        os.close(sink)
        os.close(problem)


def _write(source: int, told: int, text: bytes) -> None:
    """Wait for a whole text; write it, or the default if there is none; end this process.

    Send the number of an error of standard output.
    """
    given = b""
    while not given.endswith(_END) and (more := os.read(source, 1 << 16)):
        given += more
    try:
        _write_all(1, given[:-1] if given.endswith(_END) else text)
    except OSError as error:
        os.write(told, bytes([error.errno or 0]))
    os._exit(0)


def _write_all(descriptor: int, text: bytes) -> None:
    """Write a text, of which a pipe may take a part at once."""
    while text:
        text = text[os.write(descriptor, text) :]
