"""Model of a store: plain arrays, made of all ranks' contributions at once.

The model has neither buckets nor delayed pushes: a push takes effect when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tests.conformance.programs.arrays import Array, dtype_of, is_16_bit_float, is_real_float
from tests.conformance.programs.plan import Key, KeyPlan, SgdPlan, StorePlan

Contributions = Mapping[Key, Sequence[Sequence[Array]]]
"""Arrays by key and rank."""

_STEP = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


class UpdaterFailed(Exception):
    """Error that updaters raise."""


class Replace:
    """Rule of a store without an updater."""

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return True

    def admits(self, dtype: np.dtype[Any]) -> bool:
        """Return whether a store with this rule may have such a key, pushed or not."""
        return True

    def fold(self, key: Key, total: Array, stored: Array) -> None:
        stored[...] = total

    def forget(self, key: Key) -> None:
        """Drop the state of a key."""


class Adder(Replace):
    """An updater that adds a multiple, and raises at one key; bools are toggled."""

    def __init__(self, factor: int, raises_at: Key | None) -> None:
        self.factor = factor
        self.raises_at = raises_at

    def fold(self, key: Key, total: Array, stored: Array) -> None:
        if key == self.raises_at:
            raise UpdaterFailed("on purpose")
        if stored.dtype.kind == "b":
            stored[...] = stored ^ total
        else:
            stored[...] = stored + np.multiply(total, stored.dtype.type(self.factor))


class Hyperparameters:
    """Hyperparameters of an optimizer, which a program changes."""

    def __init__(self, plan: SgdPlan) -> None:
        self.learning_rate = plan.learning_rate
        self.momentum = plan.momentum
        self.wd = plan.wd
        self.rescale_grad = plan.rescale_grad
        self.clip_gradient = plan.clip_gradient
        self.lr_mult: dict[Key, float] = {}
        self.wd_mult: dict[Key, float] = {}


class Descent(Replace):
    """SGD in float64, which must not need its width."""

    def __init__(self, hyperparameters: Hyperparameters) -> None:
        self.hyperparameters = hyperparameters
        self.momenta: dict[Key, Array] = {}

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return is_real_float(dtype) or dtype.kind == "c"

    def fold(self, key: Key, total: Array, stored: Array) -> None:
        if stored.dtype.kind == "c":
            parts = np.stack([stored.real, stored.imag])
            self._descend(key, np.stack([total.real, total.imag]), parts)
            stored[...] = parts[0] + 1j * parts[1]
        else:
            self._descend(key, total, stored)

    def _descend(self, key: Key, total: Array, stored: Array) -> None:
        now, weight = self.hyperparameters, stored.astype(np.float64)
        gradient = now.rescale_grad * total.astype(np.float64)
        if now.clip_gradient is not None:
            gradient = np.clip(gradient, -now.clip_gradient, now.clip_gradient)
        gradient = gradient + now.wd * now.wd_mult.get(key, 1.0) * weight
        change = now.learning_rate * now.lr_mult.get(key, 1.0) * gradient
        if now.momentum:
            change = change - now.momentum * self.momenta.get(key, np.zeros(()))
            self.momenta[key] = -change
        for step in (gradient, change, weight - change):
            if not np.array_equal(step, step.astype(np.float32)):
                raise ValueError(f"the values drawn for key {key!r} are not exact in float32")
        stored[...] = (weight - change).astype(np.float32).astype(stored.dtype)

    def forget(self, key: Key) -> None:
        self.momenta.pop(key, None)


class Model:
    """One store as all ranks must see it.

    Attributes
    ----------
    values : dict of key to array
        In the order of initialisation.
    seen : dict of key to str
        Who must see that value without a pull: "all", "root" or "nobody".
    calls : list of (key, array)
        What an updating rank's updater is called with.
    block : dict or None
        What was pushed in the group that is open.
    divided : bool
        Whether each updater runs on one rank a key, and only a pull shows all of a value.
    unreported : bool
        Whether an updater has raised on the root, and the other ranks have not heard of it.
    """

    def __init__(self, plan: StorePlan, size: int) -> None:
        self.size = size
        self.root = plan.root % size if plan.update_on == "root" else None
        self.divided = plan.update_on == "sharded" and size > 1
        self.values: dict[Key, Array] = {}
        self.ops: dict[Key, str] = {}
        self.seen: dict[Key, str] = {}
        self.rule: Replace = Replace()
        self.calls: list[tuple[Key, Array]] = []
        self.block: dict[Key, list[list[Array]]] | None = None
        self.unreported = False

    def updates(self, rank: int) -> bool:
        """Return whether updaters run for every key on `rank`."""
        return not self.divided and self.root in (None, rank)

    def sees(self, rank: int, key: Key) -> bool:
        """Return whether `rank` must have a key's value without a pull."""
        return self.seen[key] == "all" or (self.seen[key] == "root" and self.updates(rank))

    def init(self, plan: KeyPlan, value: Array, op: str) -> None:
        self.values[plan.key] = np.array(value, dtype_of(plan.dtype))
        self.ops[plan.key] = op
        self.seen[plan.key] = "all"

    def reset(self, key: Key, value: Array) -> None:
        self.values[key] = value.copy()
        self.seen[key] = "all"
        self.rule.forget(key)

    def settle(self, keys: Iterable[Key]) -> None:
        """Apply all pushes of `keys`, on every rank."""
        self.seen.update(dict.fromkeys(keys, "all"))

    def apply(self, keys: Iterable[Key]) -> None:
        """Apply all pushes of `keys`, on the ranks that update them."""
        for key in keys:
            if self.seen[key] == "nobody":
                self.seen[key] = "all" if self.root is None and not self.divided else "root"

    def update_order(self, keys: Iterable[Key]) -> list[Key]:
        """Return keys in update order: ints ascending, strings in the order of initialisation."""
        places = {key: place for place, key in enumerate(self.values)}
        return sorted(keys, key=lambda key: key if isinstance(key, int) else places[key])

    def push(self, given: Contributions) -> bool:
        """Add all ranks' arrays; return whether the updater raises."""
        if self.block is not None:
            for key, arrays in given.items():
                kept = self.block.setdefault(key, [[] for _ in range(self.size)])
                for rank in range(self.size):
                    kept[rank] += [array.copy() for array in arrays[rank]]
            return False
        self.seen.update(dict.fromkeys(given, "nobody"))
        if isinstance(self.rule, Adder):
            self.apply(given)
        return self._fold(given)

    def _fold(self, given: Contributions) -> bool:
        """Update key by key, until the updater raises."""
        for key in self.update_order(given):
            total = reduced(given[key], self.ops[key])
            if isinstance(self.rule, Adder):
                self.calls.append((key, total))
            try:
                self.rule.fold(key, total, self.values[key])
            except UpdaterFailed:
                self.unreported = self.root is not None and self.size > 1
                return True
        return False

    def close_group(self, dropped: bool) -> bool:
        """End the group; return whether the updater raises."""
        block, self.block = self.block, None
        return False if dropped or not block else self.push(block)

    def rough(self) -> list[Key]:
        """Return keys so far from small values that another step might not be exact."""
        if not isinstance(self.rule, Descent):
            return []
        momenta = self.rule.momenta
        return [
            key
            for key, value in self.values.items()
            if self.rule.takes(value.dtype)
            and not (_is_coarse(value) and _is_coarse(momenta.get(key, value)))
        ]


def _is_coarse(array: Array) -> bool:
    """Return whether all elements are small multiples of 1/256."""
    if array.dtype.kind == "c":
        return _is_coarse(array.real) and _is_coarse(array.imag)
    wide = array.astype(np.float64) * 256
    return bool(np.all((wide == np.rint(wide)) & (np.abs(wide) <= 256 * 256)))


def reduced(ranks: Sequence[Sequence[Array]], op: str) -> Array:
    """Combine all ranks' arrays; 16-bit floats are rounded once a rank and once over ranks."""
    dtype = ranks[0][0].dtype
    parts = [_combined(arrays, op) for arrays in ranks]
    if op != "avg":
        return _combined(parts, op)
    wide = working_dtype(dtype)
    total = _combined([part.astype(wide) for part in parts], op)
    if dtype.kind in "iu":  # toward zero, where // is downward
        return np.asarray(total // len(ranks) + ((total < 0) & (total % len(ranks) != 0)), dtype)
    if dtype.kind == "c":  # each part by itself: dividing complex numbers rounds more than once
        return np.asarray(total.real / len(ranks) + 1j * (total.imag / len(ranks))).astype(dtype)
    return np.asarray(total / wide.type(len(ranks))).astype(dtype)


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which an average is made."""
    if is_16_bit_float(dtype):
        return np.dtype(np.float32)
    widest = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
    return widest.get(dtype.kind, dtype)


def _combined(arrays: Sequence[Array], op: str) -> Array:
    """Combine arrays in order; 16-bit floats in float32, rounded at the end."""
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if is_16_bit_float(dtype) else dtype
    total = reduce(_STEP[op], [array.astype(wide) for array in arrays])
    return np.array(total, wide).astype(dtype)
