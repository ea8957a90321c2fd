"""The shortest programs whose ranks wait for each other in two stores, by messages alone.

A rank then learns of the other's wait by a report that it has requested, perhaps while the machine
is suspended.  Few other programs have such a wait.
"""

from __future__ import annotations

from ncclkv.testing.faults import Suspend
from tests.world import plan as p
from tests.world.draw import Draw
from tests.world.faults import Expectation, break_program, crossing

_FIRST_POINT, _LAST_POINT = 300, 500
"""Points of the world around the begin of the wait."""

_LONGEST = 10.0
"""Seconds for which the machine is suspended at most."""


def draw_crossing(seed: int, timeout: float) -> tuple[p.Program, Expectation, Suspend]:
    """Draw such a program of two ranks, its errors, and when the machine is suspended."""
    draws = Draw(f"crossing {seed}")
    stores = tuple(p.StorePlan((p.KeyPlan("a"),)) for _ in range(2))
    apart = draws.pick((("NCCLKV_NODE_MEMORY", "messages"), ("NCCLKV_RANKS_PER_NODE", "1")))
    valid = p.Program(2, stores, (p.Barrier(0), p.Barrier(1)), (apart,), timeout)
    program, expectation = break_program(valid, draws, [crossing])
    point = _FIRST_POINT + draws.below(_LAST_POINT - _FIRST_POINT)
    return program, expectation, Suspend(point, draws.real(_LONGEST))
