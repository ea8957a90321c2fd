"""Operations that push and pull."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.errors import DTypeMismatch, UsageError
from tests.conformance.programs.argument_forms import (
    Errors,
    Items,
    contributions,
    forms,
    key_form,
    out_form,
)
from tests.conformance.programs.arrays import dtype_of
from tests.conformance.programs.interpreter import Interpreter, runs
from tests.conformance.programs.modelled_store import ModelledStore
from tests.conformance.programs.plan import Key, Pull, Push, PushPull
from tests.conformance.programs.sources import Sources, overwrite_arguments


@runs(Push)
def push(interpreter: Interpreter, store: ModelledStore, op: Push) -> None:
    items = Sources(store, interpreter.operation).items(op.items)
    keys, values = forms(items, interpreter.bare)
    ours = [one for _, given in items for one in given if one.ours]
    before = [np.array(one.array) for one in ours]
    errors = _unpushable(store, items)
    raises = not errors and store.model.push(contributions(items))
    store.call(lambda: store.kv.push(keys, values, op.priority), errors, raises=raises)
    for one, was in zip(ours, before, strict=True):
        store.same("pushed array", one.array, was)
        overwrite_arguments(one)


@runs(PushPull)
def pushpull(interpreter: Interpreter, store: ModelledStore, op: PushPull) -> None:
    items = Sources(store, interpreter.operation).items(op.items)
    keys, values = forms(items, interpreter.bare)
    errors = _unpushable(store, items)
    outs: Any = None
    if op.outs is None:
        writes: list[tuple[Key, Any]] = [
            (plan.key, one.array) for plan, ones in items for one in ones
        ]
        errors += [UsageError for _, array in writes if not array.flags.writeable]
    else:
        plans = [plan for plan, _ in items]
        outs, writes, refusals = out_form(store, plans, op.outs, interpreter.bare)
        errors += refusals
    raises = False
    if not errors:
        raises = store.model.push(contributions(items))
        store.expect(writes)
    priority = op.priority
    store.call(
        lambda: store.kv.pushpull(keys, values, outs, priority), errors, raises=raises, reads=True
    )
    if not errors:
        store.written(writes)


def _unpushable(store: ModelledStore, items: Items) -> Errors:
    """Return the errors that a push of these keys may raise."""
    plans = [plan for plan, _ in items]
    takes = store.model.rule.takes
    refused: Errors = [DTypeMismatch for plan in plans if not takes(dtype_of(plan.dtype))]
    return store.missing(plans) + refused


@runs(Pull)
def pull(interpreter: Interpreter, store: ModelledStore, op: Pull) -> None:
    plans = [store.key(index) for index in op.keys]
    keys = key_form(plans, interpreter.bare)
    if op.outs is None:
        errors = store.missing(plans) + ([] if op.local else store.forbidden)
        told = store.told and not op.local
        arrays = store.call(lambda: store.kv.pull(keys, local=op.local), errors, reads=not op.local)
        if errors or told:
            return
        arrays = arrays if isinstance(keys, (list, tuple)) else [arrays]
        writes = [(plan.key, array) for plan, array in zip(plans, arrays, strict=True)]
    else:
        outs, writes, errors = out_form(store, plans, op.outs, interpreter.bare)
        errors += store.missing(plans)
        if not errors and not op.local:
            store.expect(writes)
        store.call(lambda: store.kv.pull(keys, outs, local=op.local), errors, reads=not op.local)
        if errors:
            return
    if op.local:
        _pulled_locally(store, writes)
    else:
        store.written(writes)


def _pulled_locally(store: ModelledStore, writes: list[tuple[Key, Any]]) -> None:
    """Check the keys whose values this rank must have."""
    last = {id(array): (key, array) for key, array in store.ordered(writes)}
    for key, array in last.values():
        if store.model.sees(store.rank, key):
            expected = store.model.values[key].astype(array.dtype)
            store.same(f"local pull of key {key!r}", array, expected)
