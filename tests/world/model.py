"""A store's values by NumPy alone: sums of all ranks' arrays, and SGD.

The model has neither buckets nor delayed pushes: a push takes effect when it is called.  Sums are
exact in every order; steps of SGD may round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.world.arrays import Array, payload, reduced
from tests.world.coded import Coded
from tests.world.plan import Key, KeyPlan, Sgd, StorePlan

# Two roundings a step: those of the store, which holds weights of f4 in f4, differ from NumPy's.
_TOLERANCE = {"f4": 1e-4, "f8": 1e-10}


def by_op(keys: Sequence[KeyPlan]) -> list[tuple[str, list[KeyPlan]]]:
    """Return keys in the order of their initialisation, those of each op in a call."""
    ops = dict.fromkeys(key.op for key in keys)
    return [(op, [key for key in keys if key.op == op]) for op in ops]


class State(NamedTuple):
    """A store's contents, as a checkpoint holds them."""

    values: dict[Key, Array]
    momenta: dict[Key, Array]
    counts: dict[Key, int]
    rate: float
    owed: tuple[str | None, Any] = (None, None)


class Model:
    """One store as all ranks must see it.

    Attributes
    ----------
    plan : StorePlan
    keys : dict of key to KeyPlan
        The keys that have a value.
    values : dict of key to array
    coded : Coded
    rounds : bool
        Whether values may differ from the store's by roundings.
    sgd : Sgd or None
    rate : float
        The learning rate now.
    pending : set of keys
        Keys that the store may still have to reduce before they can be pushed again.
    """

    def __init__(self, plan: StorePlan, size: int) -> None:
        self.plan = plan
        self.size = size
        self.keys: dict[Key, KeyPlan] = {}
        self.values: dict[Key, Array] = {}
        self.pending: set[Key] = set()
        self.rounds = plan.optimizer is not None
        self.coded = Coded(plan.compression, size)
        self.sgd = plan.optimizer if isinstance(plan.optimizer, Sgd) else None
        self.rate = self.sgd.learning_rate if self.sgd else 0.0
        self._momenta: dict[Key, Array] = {}
        self._counts: dict[Key, int] = {}
        self.init(plan.keys)

    def init(self, keys: Iterable[KeyPlan]) -> None:
        """Give keys zeros."""
        for _, some in by_op(list(keys)):
            for key in some:
                self.keys[key.key] = key
                self.values[key.key] = np.zeros(key.shape, key.dtype)

    def order(self) -> list[Key]:
        """Return all keys in the order of updates: by index, or as they were initialised."""
        return sorted(self.keys, key=lambda key: key if isinstance(key, int) else 0)

    def known(self, names: Iterable[Key]) -> list[KeyPlan]:
        """Return the plans of those keys that have a value."""
        return [self.keys[name] for name in names if name in self.keys]

    def push(
        self, key: KeyPlan, step: int, ranks: Sequence[int], *, arrays: int = 1, among: int = 0
    ) -> None:
        """Reduce the arrays of some ranks; an average is over `among` ranks, or over all."""
        given = [[payload(key, rank, step, item) for item in range(arrays)] for rank in ranks]
        among = among or self.size
        if not self.coded.takes(key):
            total = reduced([array for of_rank in given for array in of_rank], key.op, among)
        else:
            by_rank = {
                rank: reduced(of_rank, "sum", 1) for rank, of_rank in zip(ranks, given, strict=True)
            }
            if len(ranks) < self.size == among:  # the others push zeros
                zeros = np.zeros(key.shape, key.dtype)
                by_rank = {rank: by_rank.get(rank, zeros) for rank in range(self.size)}
            total = self.coded.reduced(key, by_rank, among)
        self.fold(key.key, total)

    def fold(self, name: Key, total: Array) -> None:
        """Update a key by the reduction of a push."""
        if self.sgd is not None:
            self._descend(name, total, self.sgd)
        elif self.plan.adds:
            self.values[name] = np.asarray(self.values[name] + total)
        else:
            self.values[name] = total

    def _descend(self, name: Key, total: Array, sgd: Sgd) -> None:
        weight = self.values[name].astype("f8")
        change = -self.learning_rate(name, sgd) * (total.astype("f8") + sgd.wd * weight)
        if sgd.momentum:
            change = change + sgd.momentum * self._momenta.get(name, np.zeros(()))
            self._momenta[name] = change
        self.values[name] = (weight + change).astype(self.keys[name].dtype)

    def learning_rate(self, name: Key, sgd: Sgd) -> float:
        """Count an update of a key, and return its learning rate."""
        self._counts[name] = self._counts.get(name, 0) + 1
        if sgd.halved_after:
            latest = max(self._counts.values())
            return float(sgd.learning_rate * 0.5 ** ((latest - 1) // sgd.halved_after))
        return self.rate

    def reset(self, key: KeyPlan, step: int) -> None:
        """Take rank 0's array as the value."""
        self.values[key.key] = payload(key, 0, step)
        self._momenta.pop(key.key, None)
        self._counts.pop(key.key, None)
        self.coded.reset(key.key)

    def use(self, sgd: Sgd) -> None:
        """Set another optimizer; momenta stay where both have them."""
        if self.sgd is None or bool(self.sgd.momentum) != bool(sgd.momentum):
            self._momenta = {}
            self._counts = {}
        self.sgd, self.rate = sgd, sgd.learning_rate

    def state(self) -> State | None:
        """Return the contents as they are now, if they can be restored."""
        counts, owed = dict(self._counts), self.coded.state()
        return State(dict(self.values), dict(self._momenta), counts, self.rate, owed)

    def restore(self, state: State) -> None:
        """Take the contents of a checkpoint."""
        self.values, self._momenta = dict(state.values), dict(state.momenta)
        self._counts, self.rate = dict(state.counts), state.rate
        self.coded.restore(state.owed)

    def agrees(self, name: Key, found: Array) -> bool:
        """Return whether an array is the value of a key."""
        wanted = self.values[name].astype(found.dtype)
        if not self.rounds and not self.coded.rounds(self.keys[name]):
            return bool(np.array_equal(found, wanted))
        near = max(_TOLERANCE[dtype] for dtype in (self.keys[name].dtype, found.dtype.str[1:]))
        return found.shape == wanted.shape and bool(
            np.all(np.abs(found - wanted) <= near * (1 + np.abs(wanted)))
        )
