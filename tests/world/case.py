"""Cases: what one seed runs, and what is wrong with the outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from ncclkv.testing import NoProgress, Seeded
from ncclkv.testing.habits import Habits, draw_habits
from tests.world.draw import Draw, draw
from tests.world.oracle import Outcome, environment, verdict
from tests.world.plan import Program
from tests.world.play import play

SIZES = ((2, 4), (2, 5), (2, 6), (2, 7), (2, 8), (2, 6), (3, 6), (3, 8), (4, 8), (3, 20))
"""Ranks and calls: many short programs find more than few long ones."""


@dataclass(frozen=True)
class Case:
    """A program in a world.

    Attributes
    ----------
    seed : int
        Of the world's turns and delays.
    program : Program
    habits : Habits
    """

    seed: int
    program: Program
    habits: Habits


@dataclass(frozen=True)
class Finding:
    """The outcome of a case.

    Attributes
    ----------
    complaint : str
        What is wrong; empty when nothing is.
    world : Seeded
    """

    complaint: str
    world: Seeded


def case_of(seed: int) -> Case:
    """Return the case of a seed."""
    size, calls = Draw(f"case {seed}").pick(SIZES)
    # The program has variables of its own.
    habits = replace(draw_habits(Random(seed)), variables={})
    return Case(seed, draw(seed, size, calls), habits)


def run(case: Case, *, keep_trace: bool = False) -> Finding:
    """Run a case, and compare its outcome with what is right."""
    world = Seeded(case.seed, keep_trace=keep_trace, habits=case.habits)
    program = case.program
    try:
        with environment(program):
            ended = world.run(program.size, lambda: play(program), program.timeout)
    except NoProgress as error:
        return Finding(str(error), world)
    return Finding(verdict(Outcome(program.size, ended.seconds, ended.errors)), world)


def calmer(habits: Habits) -> list[Habits]:
    """Return habits that differ from these in one simpler trait."""
    simpler = [
        replace(habits, stall_rate=0.0),
        replace(habits, delay_rate=0.0),
        replace(habits, by_priority=False),
        replace(habits, switch_rate=0.02),
        *(
            replace(habits, constants={k: v for k, v in habits.constants.items() if k != name})
            for name in habits.constants
        ),
    ]
    return [each for each in simpler if each != habits]
