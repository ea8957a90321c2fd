"""Probes: each is a process of its own, so that its crash is a row and not the table's end."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ncclkv.system.processes import how

_PREFIX = '{"ncclkv": '
"""Beginning of a probe's lines; libraries write other lines to the same stream."""

_OWN = "ncclkv: "
"""Beginning of ncclkv's lines on standard error."""

_PARENT_DEATH_SIGNAL = 1
"""An option of ``prctl``."""


class Ended(NamedTuple):
    """A child that has ended.

    Attributes
    ----------
    told : dict
        The values that the child told, by their names.
    problem : str
        Its end, if the child did not end as it should; else empty.
    last : str
        Last line of its standard error, or the line in which ncclkv named the reason of the end.
    """

    told: dict[str, Any]
    problem: str
    last: str


def tell(name: str, value: Any) -> None:
    """Write a value for the parent, at once: the child may crash in its next step."""
    sys.stdout.write(f"{_PREFIX}{json.dumps([name, value])}}}\n")
    sys.stdout.flush()


def ask(program: str, seconds: float, given: str = "") -> Ended:
    """Run a program of Python in a child to its end.

    Parameters
    ----------
    program : str
    seconds : float
        Limit of time, after which the child is killed.
    given : str
        Its standard input.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # The child of a rank joins MPI in the rank's place, by the launcher's connection.
        close_fds=False,
    )
    problem = ""
    try:
        out, err = process.communicate(given, seconds)
    except subprocess.TimeoutExpired:
        problem = f"had not ended after {seconds:g} s"
        process.kill()
        out, err = process.communicate()
    if not problem and process.returncode:
        problem = how(process.returncode)
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith(_OWN)), lines[-1] if lines else "")
    return Ended(dict(told(out)), problem, last)


def told(out: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that processes told in an output; other lines are skipped.

    A launcher may have put the index of a rank before a line.
    """
    for line in out.splitlines():
        start = line.find(_PREFIX)
        if start >= 0:
            name, value = json.loads(line[start:])["ncclkv"]
            yield name, value


def end_with_parent() -> None:
    """Make the kernel kill this child when its parent ends: the child may wait for other ranks."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
