"""Cases: what one seed runs, and what is wrong with the outcome."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from random import Random

from ncclkv.testing import NoProgress, Seeded
from ncclkv.testing.faults import Fault
from ncclkv.testing.habits import Habits, draw_habits
from tests.world.accidents import accident_verdict, draw_accident
from tests.world.crossings import draw_crossing
from tests.world.draw import Draw, draw
from tests.world.faults import Expectation, break_program
from tests.world.nccl_promises import on_nccl
from tests.world.oracle import Outcome, environment, reverse_verdict, verdict
from tests.world.plan import Program
from tests.world.play import play

SIZES = ((2, 4), (2, 5), (2, 6), (2, 7), (2, 8), (2, 6), (3, 6), (3, 8), (4, 8), (3, 20))
"""Ranks and calls: many short programs find more than few long ones."""


BROKEN = 0.3
"""The part of the seeds whose programs are broken on purpose."""

ACCIDENTS = 0.2
"""The part of the valid programs to which something happens."""

CROSSINGS = 0.2
"""The part of the seeds that are crossings of two stores, whose programs are short."""

TIMEOUT, LONG_TIMEOUT = 60.0, 300.0
"""Seconds that ranks wait for each other: less where some wait in vain, since that takes points."""

SLACK = 5.0
"""Seconds in which ranks notice an error, after the time that the world took from them."""


@dataclass(frozen=True)
class Case:
    """A program in a world.

    Attributes
    ----------
    seed : int
        Of the world's turns and delays.
    program : Program
    habits : Habits
    expectation : Expectation or None
        The errors of a program that is broken on purpose.
    accident : Fault or None
        A fault of the world that happens to the program.
    standin : bool
        Whether the stores are on the stand-in of NCCL.
    """

    seed: int
    program: Program
    habits: Habits
    expectation: Expectation | None = None
    accident: Fault | None = None
    standin: bool = False


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


def case_of(seed: int, *, standin: bool = False) -> Case:
    """Return the case of a seed; no accident happens on the stand-in."""
    # The program has variables of its own.
    habits = replace(draw_habits(Random(seed)), variables={})
    if not standin and Draw(f"kind {seed}").chance(CROSSINGS):
        crossing, errors, suspension = draw_crossing(seed, TIMEOUT)
        return Case(seed, crossing, habits, errors, suspension)
    size, calls = Draw(f"case {seed}").pick(SIZES)
    faults = Draw(f"fault {seed}")
    expectation: Expectation | None = None
    accident: Fault | None = None
    broken = faults.chance(BROKEN)
    # The stand-in makes no promise about accidents.
    hit = faults.chance(ACCIDENTS) and not standin
    program = draw(seed, size, calls, timeout=TIMEOUT if broken or hit else LONG_TIMEOUT)
    if broken or standin:
        # The farewell of `close` is part of what is expected; on NCCL a valid program closes.
        program = replace(program, closes=True)
    if broken:
        program, expectation = break_program(program, faults)
        if standin:
            expectation = on_nccl(program, expectation)
    elif hit:
        accident = draw_accident(faults, size, program.timeout)
    return Case(seed, program, habits, expectation, accident, standin)


def run(case: Case, *, keep_trace: bool = False) -> Finding:
    """Run a case, and compare its outcome with what is right."""
    faults = [] if case.accident is None else [case.accident]
    world = Seeded(case.seed, keep_trace=keep_trace, habits=case.habits, faults=faults)
    program, player = case.program, _player(case)
    # Lines about long waits and skipped pushes would hide the report of the search.
    silent = nullcontext() if keep_trace else redirect_stderr(StringIO())
    try:
        with environment(program), silent:
            ended = world.run(program.size, lambda: player(program), program.timeout)
    except NoProgress as error:
        return Finding(str(error), world)
    outcome = Outcome(program.size, ended.seconds, ended.errors)
    if case.expectation is not None:
        complaint = reverse_verdict(outcome, case.expectation, world.lost, SLACK)
    elif case.accident is not None:
        complaint = accident_verdict(outcome, case.accident, program.timeout, world.lost, SLACK)
    else:
        complaint = verdict(outcome)
    return Finding(complaint, world)


def _player(case: Case) -> Callable[[Program], None]:
    """Return the function that plays a program on a rank."""
    if not case.standin:
        return play
    from tests.world.standin import play_on_standin  # imports CuPy

    return partial(play_on_standin, broken=case.expectation is not None)


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
