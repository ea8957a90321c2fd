"""Arguments of a call in the forms that users write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclkv.errors import DTypeMismatch, UsageError
from tests.conformance.programs.arrays import LAYOUTS, Array, dtype_of, laid_out
from tests.conformance.programs.modelled_store import ModelledStore
from tests.conformance.programs.plan import Key, KeyPlan, Outs, Value
from tests.conformance.programs.sources import Given, Sources

Items = list[tuple[KeyPlan, list[Given]]]
Errors = list[type[BaseException]]


def one_each(store: ModelledStore, plans: Sequence[KeyPlan], operation: int) -> Items:
    """Return a new array for each key, in a layout that changes from call to call."""
    sources = Sources(store, operation)
    value = Value(layout=LAYOUTS[operation % len(LAYOUTS)])
    return [(plan, [sources.one(plan, value)]) for plan in plans]


def key_form(plans: Sequence[KeyPlan], bare: bool) -> Any:
    """Return keys as a list, a tuple, or the single key; ints sometimes as NumPy's."""
    keys: list[Any] = [plan.key for plan in plans]
    if len(keys) % 2 and isinstance(keys[0], int):
        keys[0] = np.int64(keys[0])
    if len(keys) == 1 and bare:
        return keys[0]
    return tuple(keys) if bare else keys


def forms(items: Items, bare: bool) -> tuple[Any, Any]:
    """Return keys and arrays in the forms of a verb."""
    keys = key_form([plan for plan, _ in items], bare)
    values: list[Any] = []
    for _, given in items:
        arrays = [one.array for one in given]
        values.append(arrays[0] if len(arrays) == 1 and bare else arrays)
    return keys, values if isinstance(keys, (list, tuple)) else values[0]


def out_form(
    store: ModelledStore, plans: Sequence[KeyPlan], outs: Outs, bare: bool
) -> tuple[Any, list[tuple[Key, Any]], Errors]:
    """Return arrays to write in the forms of a verb, key by key, and the reason of a refusal."""
    made: dict[Any, Any] = {}
    writes: list[tuple[Key, Any]] = []
    errors: Errors = []
    targets = []
    for plan in plans:
        dtype = dtype_of(outs.dtype or plan.dtype)
        arrays = []
        for _ in range(outs.count):
            array = laid_out(np.full(plan.shape, 7).astype(dtype), outs.layout)
            if outs.shared:
                array = made.setdefault((plan.shape, dtype), array)
            arrays.append(array)
            errors += [UsageError] * (not array.flags.writeable)
        if dtype_of(plan.dtype).kind == "c" and dtype.kind != "c":
            errors.append(DTypeMismatch)
        writes += [(plan.key, array) for array in arrays]
        targets.append(arrays[0] if len(arrays) == 1 and bare else arrays)
    return targets[0] if len(plans) == 1 and bare else targets, writes, errors


def contributions(items: Items) -> dict[Key, list[list[Array]]]:
    """Return every rank's contribution to each key."""
    found: dict[Key, list[list[Array]]] = {}
    for plan, given in items:
        for one in given:
            ranks = found.setdefault(plan.key, [[] for _ in one.ranks])
            for rank, array in enumerate(one.ranks):
                ranks[rank].append(array)
    return found
