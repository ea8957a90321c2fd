"""Arrays of a program's values: one rank's arrays, and all ranks' contributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.conformance.programs.arrays import Array, dtype_of, is_tame, laid_out, payload
from tests.conformance.programs.modelled_store import ModelledStore
from tests.conformance.programs.plan import Item, Key, KeyPlan, Value


@dataclass
class Given:
    """An array of a call: this rank's, and what each rank contributes.

    `ours` says that the array was made for this call, so that it may be overwritten after it.
    """

    array: Any
    ranks: list[Array]
    ours: bool


class Sources:
    """The arrays of one call."""

    def __init__(self, store: ModelledStore, operation: int) -> None:
        self._seat = store
        self._operation = operation
        self._count = 0
        self._made: list[tuple[KeyPlan, Given]] = []
        self._lent: set[Key] = set()

    def items(self, items: Sequence[Item]) -> list[tuple[KeyPlan, list[Given]]]:
        """Return all arrays of a list of items."""
        found = []
        for item in items:
            plan = self._seat.key(item.key)
            found.append((plan, [self.one(plan, value) for value in item.values]))
        return found

    def one(self, plan: KeyPlan, value: Value) -> Given:
        """Return one array for a key from the source that the program names, if possible."""
        other = self._seat.key(value.of)
        given = None
        if value.source == "gradient":
            given = self._gradient(plan)
        elif value.source == "shared":
            given = self._shared(plan, value.of)
        elif _alike(plan, other):
            if value.source == "stored":
                given = self._stored(other)
            elif value.source == "previous":
                given = self._previous(other)
        given = given or self._fresh(plan, value.layout)
        self._made.append((plan, given))
        return given

    def fresh_ranks(self, plan: KeyPlan) -> list[Array]:
        """Return the values of this call, by rank."""
        self._count += 1
        size = self._seat.model.size
        return [payload(plan, rank, self._operation, self._count) for rank in range(size)]

    def _fresh(self, plan: KeyPlan, layout: str) -> Given:
        ranks = self.fresh_ranks(plan)
        return Given(laid_out(ranks[self._seat.rank], layout), ranks, ours=True)

    def _shared(self, plan: KeyPlan, which: int) -> Given | None:
        """Return an array that was given to an equal key in this call."""
        alike = [
            given for other, given in self._made if _alike(plan, other) and plan.op == other.op
        ]
        if not alike:
            return None
        given = alike[which % len(alike)]
        return Given(given.array, given.ranks, ours=False)

    def _stored(self, other: KeyPlan) -> Given | None:
        """Return the store's own value of a key that all ranks have."""
        model = self._seat.model
        value = model.values.get(other.key)
        if value is None or model.seen[other.key] != "all" or not is_tame(value):
            return None
        return Given(self._seat.kv.value(other.key), [value.copy()] * model.size, ours=False)

    def _previous(self, other: KeyPlan) -> Given | None:
        """Return an array that was pulled earlier."""
        for held in self._seat.held:
            fits = held.written and held.key == other.key and _fits(held.array, other)
            if fits and is_tame(held.expected):
                return Given(held.array, [held.expected.copy()] * self._seat.model.size, ours=False)
        return None

    def _gradient(self, plan: KeyPlan) -> Given | None:
        """Return the key's gradient view, filled; none while the store may own it."""
        model = self._seat.model
        waiting = model.seen.get(plan.key, "nobody") == "nobody" or plan.key in (model.block or ())
        if waiting or plan.key in self._lent:
            return None
        self._lent.add(plan.key)
        ranks = self.fresh_ranks(plan)
        view = self._seat.kv.grad_view(plan.key)
        view[...] = ranks[self._seat.rank]
        self._seat.gradients[id(view)] = view
        return Given(view, ranks, ours=False)


def _alike(one: KeyPlan, other: KeyPlan) -> bool:
    """Return whether an array of one key can be pushed into the other."""
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _fits(array: Any, plan: KeyPlan) -> bool:
    """Return whether an array has the dtype of a key, in the machine's byte order."""
    return bool(np.asarray(array).dtype == dtype_of(plan.dtype))


def overwrite_arguments(given: Given) -> None:
    """Overwrite an array, as its owner may once a push of it has returned."""
    if given.ours and isinstance(given.array, np.ndarray) and given.array.flags.writeable:
        given.array[...] = 1
