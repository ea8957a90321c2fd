"""All stores of a program on one rank, and its operations one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ncclkv import optimizer
from ncclkv.errors import annotate
from tests.conformance.programs.argument_forms import forms, one_each
from tests.conformance.programs.model import Hyperparameters
from tests.conformance.programs.modelled_store import ModelledStore
from tests.conformance.programs.plan import KeyPlan, Op, Program, Pull
from tests.conformance.programs.sources import overwrite_arguments

ACTIONS: dict[type[Op], Callable[..., None]] = {}


def runs(kind: type[Op]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function of (interpreter, rank, op) for an operation's type."""

    def note(action: Callable[..., None]) -> Callable[..., None]:
        ACTIONS[kind] = action
        return action

    return note


class Interpreter:
    """All stores of a program on one rank.

    Attributes
    ----------
    operation : int
        Index of the operation, from 1; what ranks push depends on it.
    optimizers, hyperparameters
        The optimizers of the program, and their hyperparameters as the model has them.
    """

    def __init__(self, program: Program, stores: Sequence[ModelledStore]) -> None:
        self.stores = stores
        self.hyperparameters = [Hyperparameters(each) for each in program.optimizers]
        self.optimizers: list[Any] = [optimizer.SGD(**vars(each)) for each in program.optimizers]
        self.operation = 0
        self._ops = program.ops

    @property
    def bare(self) -> bool:
        """Return whether single keys and arrays of this operation are passed without a list."""
        return self.operation % 2 == 0

    def run(self) -> None:
        """Run all operations, and pull every key at the end."""
        for op in self._ops:
            self.step(op)
        for index, store in enumerate(self.stores):
            known = [n for n, key in enumerate(store.plan.keys) if key.key in store.model.values]
            self.step(Pull(index, tuple(known), None))

    def step(self, op: Op) -> None:
        """Run one operation, and check all stores."""
        self.operation += 1
        index, store = self.operation, self.stores[op.store % len(self.stores)]
        try:
            ACTIONS[type(op)](self, store, op)
            for each in self.stores:
                each.check()
            if not store.in_group and (rough := store.model.rough()):
                self.replace(store, [plan for plan in store.plan.keys if plan.key in rough])
        except Exception as error:
            annotate(error, f"rank {store.rank}, operation {index}: {op}")
            raise

    def replace(self, store: ModelledStore, plans: Sequence[KeyPlan]) -> None:
        """Reset keys to rank 0's values of this operation."""
        given = one_each(store, plans, self.operation)
        keys, values = forms(given, self.bare)
        errors = [*store.missing(plans), *store.forbidden]
        store.call(lambda: store.kv.reset(keys, values), errors)
        if not errors:
            for plan, (one,) in given:
                store.model.reset(plan.key, one.ranks[0])
                overwrite_arguments(one)
