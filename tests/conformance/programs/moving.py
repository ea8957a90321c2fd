"""Operations that push and pull."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.errors import DTypeMismatch, UsageError
from tests.conformance.programs.arrays import dtype_of
from tests.conformance.programs.forms import Errors, Items, contributions, forms, key_form, out_form
from tests.conformance.programs.plan import Key, Pull, Push, PushPull
from tests.conformance.programs.rank import Seat
from tests.conformance.programs.sources import Sources, scribble
from tests.conformance.programs.stage import Stage, does


@does(Push)
def push(stage: Stage, seat: Seat, op: Push) -> None:
    items = Sources(seat, stage.number).items(op.items)
    keys, values = forms(items, stage.bare)
    ours = [one for _, given in items for one in given if one.ours]
    before = [np.array(one.array) for one in ours]
    errors = _unpushable(seat, items)
    raises = not errors and seat.model.push(contributions(items))
    seat.call(lambda: seat.kv.push(keys, values, op.priority), errors, raises=raises)
    for one, was in zip(ours, before, strict=True):
        seat.same("pushed array", one.array, was)
        scribble(one)


@does(PushPull)
def pushpull(stage: Stage, seat: Seat, op: PushPull) -> None:
    items = Sources(seat, stage.number).items(op.items)
    keys, values = forms(items, stage.bare)
    errors = _unpushable(seat, items)
    outs: Any = None
    if op.outs is None:
        writes: list[tuple[Key, Any]] = [
            (plan.key, one.array) for plan, ones in items for one in ones
        ]
        errors += [UsageError for _, array in writes if not array.flags.writeable]
    else:
        plans = [plan for plan, _ in items]
        outs, writes, refusals = out_form(seat, plans, op.outs, stage.bare)
        errors += refusals
    raises = False
    if not errors:
        raises = seat.model.push(contributions(items))
        seat.expect(writes)
    priority = op.priority
    seat.call(
        lambda: seat.kv.pushpull(keys, values, outs, priority), errors, raises=raises, reads=True
    )
    if not errors:
        seat.written(writes)


def _unpushable(seat: Seat, items: Items) -> Errors:
    """Return the errors that a push of these keys may raise."""
    plans = [plan for plan, _ in items]
    takes = seat.model.rule.takes
    refused: Errors = [DTypeMismatch for plan in plans if not takes(dtype_of(plan.dtype))]
    return seat.missing(plans) + refused


@does(Pull)
def pull(stage: Stage, seat: Seat, op: Pull) -> None:
    plans = [seat.key(number) for number in op.keys]
    keys = key_form(plans, stage.bare)
    if op.outs is None:
        errors = seat.missing(plans) + ([] if op.local else seat.forbidden)
        told = seat.told and not op.local
        arrays = seat.call(lambda: seat.kv.pull(keys, local=op.local), errors, reads=not op.local)
        if errors or told:
            return
        arrays = arrays if isinstance(keys, (list, tuple)) else [arrays]
        writes = [(plan.key, array) for plan, array in zip(plans, arrays, strict=True)]
    else:
        outs, writes, errors = out_form(seat, plans, op.outs, stage.bare)
        errors += seat.missing(plans)
        if not errors and not op.local:
            seat.expect(writes)
        seat.call(lambda: seat.kv.pull(keys, outs, local=op.local), errors, reads=not op.local)
        if errors:
            return
    if op.local:
        _pulled_locally(seat, writes)
    else:
        seat.written(writes)


def _pulled_locally(seat: Seat, writes: list[tuple[Key, Any]]) -> None:
    """Check the keys whose values this rank must have."""
    last = {id(array): (key, array) for key, array in seat.ordered(writes)}
    for key, array in last.values():
        if seat.model.sees(seat.rank, key):
            expected = seat.model.values[key].astype(array.dtype)
            seat.same(f"local pull of key {key!r}", array, expected)
