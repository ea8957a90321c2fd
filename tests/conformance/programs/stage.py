"""All stores of a program on one rank, and its operations one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ncclkv import optimizer
from ncclkv.errors import annotate
from tests.conformance.programs.forms import forms, one_each
from tests.conformance.programs.model import Numbers
from tests.conformance.programs.plan import KeyPlan, Op, Program, Pull
from tests.conformance.programs.rank import Seat
from tests.conformance.programs.sources import scribble

ACTIONS: dict[type[Op], Callable[..., None]] = {}


def does(kind: type[Op]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function of (stage, rank, op) for an operation's type."""

    def note(action: Callable[..., None]) -> Callable[..., None]:
        ACTIONS[kind] = action
        return action

    return note


class Stage:
    """All stores of a program on one rank.

    Attributes
    ----------
    number : int
        Of the operation, from 1; what ranks push depends on it.
    optimizers, numbers
        The optimizers of the program, and their numbers as the model knows them.
    """

    def __init__(self, program: Program, seats: Sequence[Seat]) -> None:
        self.seats = seats
        self.numbers = [Numbers(each) for each in program.optimizers]
        self.optimizers: list[Any] = [optimizer.SGD(**vars(each)) for each in program.optimizers]
        self.number = 0
        self._ops = program.ops

    @property
    def bare(self) -> bool:
        """Return whether single keys and arrays of this operation are passed without a list."""
        return self.number % 2 == 0

    def run(self) -> None:
        """Run all operations, and pull every key at the end."""
        for op in self._ops:
            self.step(op)
        for index, seat in enumerate(self.seats):
            known = [n for n, key in enumerate(seat.plan.keys) if key.key in seat.model.values]
            self.step(Pull(index, tuple(known), None))

    def step(self, op: Op) -> None:
        """Run one operation, and check all stores."""
        self.number += 1
        number, seat = self.number, self.seats[op.store % len(self.seats)]
        try:
            ACTIONS[type(op)](self, seat, op)
            for each in self.seats:
                each.check()
            if not seat.in_group and (rough := seat.model.rough()):
                self.replace(seat, [plan for plan in seat.plan.keys if plan.key in rough])
        except Exception as error:
            annotate(error, f"rank {seat.rank}, operation {number}: {op}")
            raise

    def replace(self, seat: Seat, plans: Sequence[KeyPlan]) -> None:
        """Reset keys to rank 0's numbers of this operation."""
        given = one_each(seat, plans, self.number)
        keys, values = forms(given, self.bare)
        errors = [*seat.missing(plans), *seat.forbidden]
        seat.call(lambda: seat.kv.reset(keys, values), errors)
        if not errors:
            for plan, (one,) in given:
                seat.model.reset(plan.key, one.ranks[0])
                scribble(one)
