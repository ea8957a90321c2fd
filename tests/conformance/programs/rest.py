"""Operations that wait, read, misuse, or group others."""

from __future__ import annotations

from ncclkv.errors import DTypeMismatch, UpdaterError
from tests.conformance.programs.arrays import dtype_of
from tests.conformance.programs.forms import key_form
from tests.conformance.programs.misuse import MISUSES
from tests.conformance.programs.model import Stumble
from tests.conformance.programs.plan import Barrier, Group, KeyPlan, Look, Misuse, Wait
from tests.conformance.programs.rank import Seat
from tests.conformance.programs.stage import Stage, does


class Leave(Exception):
    """Exception that leaves a group."""


@does(Wait)
def wait(stage: Stage, seat: Seat, op: Wait) -> None:
    plans = [] if op.keys is None else [seat.key(number) for number in op.keys]
    errors = seat.missing(plans) + seat.forbidden
    keys = None if op.keys is None else key_form(plans, stage.bare)
    seat.call(lambda: seat.kv.wait(keys), errors, reads=True)
    if not errors:
        known = seat.model.values if op.keys is None else [plan.key for plan in plans]
        seat.model.settle(known)


@does(Barrier)
def barrier(stage: Stage, seat: Seat, op: Barrier) -> None:
    seat.call(seat.kv.barrier, seat.forbidden, reads=True)
    if not seat.in_group:
        seat.model.settle(seat.model.values)


@does(Look)
def look(stage: Stage, seat: Seat, op: Look) -> None:
    plan = seat.key(op.key)
    if seat.rank % op.stride:
        return
    missing = seat.missing([plan])
    assert (plan.key in seat.kv) == (not missing)
    view = seat.call(lambda: seat.kv.value(plan.key), missing)
    spec = seat.call(lambda: seat.kv.spec(plan.key), missing)
    assert repr(seat.kv)
    assert seat.kv.explain_plan()
    if not missing:
        _looked_at(seat, plan, view, spec)


def _looked_at(seat: Seat, plan: KeyPlan, view: object, spec: object) -> None:
    """Check the values that a rank reads by itself."""
    assert not view.flags.writeable
    got = (spec.key, spec.shape, spec.dtype, spec.op)
    assert got == (plan.key, plan.shape, dtype_of(plan.dtype), seat.model.ops[plan.key]), got
    if seat.model.sees(seat.rank, plan.key):
        seat.same(f"value of key {plan.key!r}", view, seat.model.values[plan.key])


@does(Misuse)
def misuse(stage: Stage, seat: Seat, op: Misuse) -> None:
    plan = seat.key(op.key)
    if plan.key in seat.model.values:
        error, call = MISUSES[op.name](seat.kv, plan)
        untaken = not seat.model.rule.takes(dtype_of(plan.dtype))
        seat.call(call, [error, *seat.forbidden, *[DTypeMismatch] * untaken])


@does(Group)
def group(stage: Stage, seat: Seat, op: Group) -> None:
    block = seat.kv.group()
    if seat.in_group:
        seat.call(block.__enter__, seat.forbidden)
        return
    seat.model.block, seat.reads = {}, []
    left = raised = told = expected = False
    try:
        with block:
            for inner in op.body:
                stage.step(inner)
            if op.fails:
                raise Leave
            expected = seat.model.close_group(dropped=False)
    except Leave:
        left = seat.model.close_group(dropped=True) or True
    except Stumble:
        raised = True
    except UpdaterError:
        told = True
    assert raised == (expected and seat.updates), f"the updater raised: {raised}"
    assert told == (seat.told and not left), f"this rank was told what the updater raised: {told}"
    if not left:
        seat.model.untold = False
        seat.compare(seat.reads)
