"""Shrinking: a smaller program, and a calmer world, with the same complaint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tests.world.case import Case, calmer, run

_SEEDS = 30
"""Worlds in which a smaller program is tried."""


def shrunk(case: Case) -> Case:
    """Return the smallest case that greedy steps find, with the same kind of complaint."""
    wanted = kind(run(case).complaint)
    while True:
        smaller = next((each for each in _smaller(case) if _complains(each, wanted)), None)
        if smaller is None:
            return case
        case = smaller


def kind(complaint: str) -> str:
    """Return a complaint without its integers, values and stacks."""
    first = complaint.splitlines()[0] if complaint else ""
    return re.sub(r"[\d.]+", "N", first.partition(": found [")[0])[:100]


def _complains(case: Case, wanted: str) -> bool:
    """Return whether a case has a complaint of a kind."""
    return kind(run(case).complaint) == wanted


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with a step less, in several worlds, or with a habit less."""
    steps = case.program.steps
    for index in range(len(steps)):
        program = replace(case.program, steps=steps[:index] + steps[index + 1 :])
        for seed in (case.seed, *range(_SEEDS)):
            yield replace(case, program=program, seed=seed)
    for habits in calmer(case.habits):
        yield replace(case, habits=habits)
