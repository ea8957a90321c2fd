"""Pytest started again after a test that ended its process, so that only that test is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.progress import Record

PLUGIN = ("-p", "tests.harness.progress")

MOST_LOST = 20
"""Limit of lost tests: the cause of more is not in the tests."""


@dataclass(frozen=True)
class Outcome:
    """The end of all rounds.

    Attributes
    ----------
    code : int
        Exit code of the only round; 1 if a test was lost.
    lost : tuple of str
        Node ids of the tests that ended their processes.
    """

    code: int
    lost: tuple[str, ...]


def run(
    command: Sequence[str],
    start: Callable[[Sequence[str]], int],
    tell: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a command; while it loses a test, run it again without the tests that it has begun.

    Parameters
    ----------
    command : sequence of str
        One without the word ``pytest`` is started once.
    start : callable
        Runs a command to its end and returns its exit code.
    tell : callable
        Called with a line for each test that is lost.
    """
    if "pytest" not in command:
        return Outcome(start(command), ())
    code = 0
    lost: list[str] = []
    done: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        while len(lost) < MOST_LOST:
            record, names = Path(folder, f"record-{len(lost)}"), Path(folder, f"done-{len(lost)}")
            names.write_text("".join(f"{name}\n" for name in done))
            options = (*PLUGIN, f"--record={record}", f"--done={names}")
            code = start((*command, *options))
            seen = Record.read(record)
            if not seen.lost:
                break
            done += seen.begun
            lost.append(seen.lost)
            tell(f"{seen.lost} ended its process (exit code {code}); the others go on")
    return Outcome(1 if lost else code, tuple(lost))
