"""Judge how the ranks of a program ended."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ncclkv import concurrency
from ncclkv.comm import world
from ncclkv.errors import CommError
from ncclkv.testing import run_ranks
from tests.world.faults import Expectation
from tests.world.plan import Program
from tests.world.play import play

_PATIENCE = 0.9
"""Seconds for which a rank that has found a difference surely waits for the others' reports."""


@dataclass
class Outcome:
    """Ends of all ranks of a program.

    Attributes
    ----------
    size : int
    ended : dict of int to float
        Seconds after the start at which a rank's program ended, by rank.
    errors : dict of int to BaseException
        Exceptions that left the ranks' programs, by rank.
    """

    size: int
    ended: dict[int, float] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)


@contextmanager
def environment(program: Program) -> Iterator[None]:
    """Set the variables of a program, for this process."""
    names = ("NCCLKV_NODE_MEMORY", "NCCLKV_RANKS_PER_NODE")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(dict(program.environment))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def run(program: Program) -> Outcome:
    """Run a program on threads, with the clock of the machine."""
    outcome = Outcome(program.size)

    def body() -> None:
        rank, begin = world().rank, concurrency.monotonic()
        try:
            play(program)
        except BaseException as error:
            outcome.errors[rank] = error
            raise
        finally:
            outcome.ended[rank] = concurrency.monotonic() - begin

    with environment(program), suppress(Exception):
        run_ranks(program.size, body, timeout=program.timeout)
    return outcome


def verdict(outcome: Outcome) -> str:
    """Return the complaint about a valid program, or no text."""
    # First the causes: the other ranks lose the ranks that they ended.
    errors = sorted(outcome.errors.items(), key=lambda each: isinstance(each[1], CommError))
    lines = [f"rank {rank}: {told(error)}" for rank, error in errors]
    missing = [rank for rank in range(outcome.size) if rank not in outcome.ended]
    lines += [f"rank {rank} has not ended" for rank in missing]
    return "\n".join(lines)


def reverse_verdict(
    outcome: Outcome, expected: Expectation, lost: float = 0.0, slack: float = 0.0
) -> str:
    """Return the complaint about a broken program, or no text.

    Parameters
    ----------
    lost : float
        Seconds that the world took from the ranks, beyond those of the program.
    slack : float
        Seconds in which ranks notice an error.
    """
    complaint = _complaint(outcome, expected, lost, slack)
    if not complaint or expected.otherwise is None:
        return complaint
    return complaint if reverse_verdict(outcome, expected.otherwise, lost, slack) else ""


def _complaint(outcome: Outcome, expected: Expectation, lost: float, slack: float) -> str:
    """Return the complaint about a program by one expectation alone."""
    lines = []
    # An error is raised after a second also without the report of a rank that has lost its time.
    words = expected.words if lost < _PATIENCE else expected.words[:1]
    for rank in range(outcome.size):
        error, own = outcome.errors.get(rank), rank == expected.rank
        names = _classes(error, expected.rank)
        if rank not in outcome.ended:
            lines.append(f"rank {rank} has not ended")
            continue
        if names.isdisjoint(expected.own if own else expected.others):
            lines.append(f"rank {rank} has the wrong end: {told(error)}")
        elif error is not None and (not own or names.intersection(expected.named)):
            missing = [word for word in words if not says(error, word)]
            lines += [f"rank {rank}: no {word!r} in the text: {error}" for word in missing]
        seconds = expected.seconds + lost + slack + (expected.later if own else 0.0)
        if outcome.ended[rank] > seconds:
            lines.append(f"rank {rank} ended after {outcome.ended[rank]:.1f} s: {told(error)}")
    others = [type(e).__name__ for rank, e in outcome.errors.items() if rank != expected.rank]
    if expected.some and expected.some not in others:
        lines.append(f"no rank has {expected.some}")
    return "\n".join([*lines, f"({expected.fault}, rank {expected.rank})"]) if lines else ""


def _classes(error: BaseException | None, lost: int) -> set[str]:
    """Return the name of an error's class, and of another for which it may stand.

    A rank that raises in a block leaves it early, and others may find that before its farewell.
    """
    if error is None:
        return {""}
    early = f"an exception has ended the block of rank {lost}" in str(error)
    return {type(error).__name__, *["RankLost"] * early}


def says(error: BaseException, word: str) -> bool:
    """Return whether the text of an error has a word; ``rank 1`` may stand in ``ranks 0, 1``."""
    rank = re.fullmatch(r"rank (\d+)", word)
    if rank is None:
        return word in str(error)
    return re.search(rf"\branks? (\d+, )*{rank[1]}\b", str(error)) is not None


def told(error: BaseException | None) -> str:
    """Return an error's class and text, with its notes."""
    if error is None:
        return "no error"
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return "\n".join([f"{type(error).__name__}: {error}", *notes])
