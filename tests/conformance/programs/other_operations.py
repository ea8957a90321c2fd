"""Operations that wait, read, misuse, or group others."""

from __future__ import annotations

from ncclkv.errors import DTypeMismatch, UpdaterError
from tests.conformance.programs.argument_forms import key_form
from tests.conformance.programs.arrays import dtype_of
from tests.conformance.programs.interpreter import Interpreter, runs
from tests.conformance.programs.misuse import MISUSES
from tests.conformance.programs.model import UpdaterFailed
from tests.conformance.programs.modelled_store import ModelledStore
from tests.conformance.programs.plan import Barrier, Group, KeyPlan, Look, Misuse, Wait


class Leave(Exception):
    """Exception that leaves a group."""


@runs(Wait)
def wait(interpreter: Interpreter, store: ModelledStore, op: Wait) -> None:
    plans = [] if op.keys is None else [store.key(index) for index in op.keys]
    errors = store.missing(plans) + store.forbidden
    keys = None if op.keys is None else key_form(plans, interpreter.bare)
    store.call(lambda: store.kv.wait(keys), errors, reads=True)
    if not errors:
        known = store.model.values if op.keys is None else [plan.key for plan in plans]
        store.model.settle(known)


@runs(Barrier)
def barrier(interpreter: Interpreter, store: ModelledStore, op: Barrier) -> None:
    store.call(store.kv.barrier, store.forbidden, reads=True)
    if not store.in_group:
        store.model.settle(store.model.values)


@runs(Look)
def look(interpreter: Interpreter, store: ModelledStore, op: Look) -> None:
    plan = store.key(op.key)
    if store.rank % op.stride:
        return
    missing = store.missing([plan])
    assert (plan.key in store.kv) == (not missing)
    view = store.call(lambda: store.kv.value(plan.key), missing)
    spec = store.call(lambda: store.kv.spec(plan.key), missing)
    assert repr(store.kv)
    assert store.kv.explain_plan()
    if not missing:
        _looked_at(store, plan, view, spec)


def _looked_at(store: ModelledStore, plan: KeyPlan, view: object, spec: object) -> None:
    """Check the values that a rank reads by itself."""
    assert not view.flags.writeable
    got = (spec.key, spec.shape, spec.dtype, spec.op)
    assert got == (plan.key, plan.shape, dtype_of(plan.dtype), store.model.ops[plan.key]), got
    if store.model.sees(store.rank, plan.key):
        store.same(f"value of key {plan.key!r}", view, store.model.values[plan.key])


@runs(Misuse)
def misuse(interpreter: Interpreter, store: ModelledStore, op: Misuse) -> None:
    plan = store.key(op.key)
    if plan.key in store.model.values:
        error, call = MISUSES[op.name](store.kv, plan)
        untaken = not store.model.rule.takes(dtype_of(plan.dtype))
        store.call(call, [error, *store.forbidden, *[DTypeMismatch] * untaken])


@runs(Group)
def group(interpreter: Interpreter, store: ModelledStore, op: Group) -> None:
    block = store.kv.group()
    if store.in_group:
        store.call(block.__enter__, store.forbidden)
        return
    store.model.block, store.reads = {}, []
    left = raised = told = expected = False
    try:
        with block:
            for inner in op.body:
                interpreter.step(inner)
            if op.fails:
                raise Leave
            expected = store.model.close_group(dropped=False)
    except Leave:
        left = store.model.close_group(dropped=True) or True
    except UpdaterFailed:
        raised = True
    except UpdaterError:
        told = True
    assert raised == (expected and store.updates), f"the updater raised: {raised}"
    assert told == (store.told and not left), f"this rank was told what the updater raised: {told}"
    if not left:
        store.model.unreported = False
        store.compare(store.reads)
