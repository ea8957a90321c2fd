"""Operations that give keys their values."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.errors import KeyAlreadyInitialized
from tests.conformance.programs.argument_forms import forms, one_each, out_form
from tests.conformance.programs.interpreter import Interpreter, runs
from tests.conformance.programs.modelled_store import ModelledStore
from tests.conformance.programs.plan import Broadcast, Init, KeyPlan, Reset
from tests.conformance.programs.sources import overwrite_arguments


@runs(Init)
def initialise(interpreter: Interpreter, store: ModelledStore, op: Init) -> None:
    plans = store.distinct(op.keys)
    for kind in dict.fromkeys(plan.op for plan in plans):
        _initialise(interpreter, store, [plan for plan in plans if plan.op == kind], kind)


def _initialise(
    interpreter: Interpreter, store: ModelledStore, plans: Sequence[KeyPlan], kind: str
) -> None:
    """Initialise keys of one op by one call."""
    given = one_each(store, plans, interpreter.operation)
    keys, values = forms(given, interpreter.bare)
    errors = [KeyAlreadyInitialized for plan in plans if plan.key in store.model.values]
    errors += store.forbidden + store.inadmissible(plans)
    store.call(lambda: store.kv.init(keys, values, op=kind), errors)
    if not errors:
        for plan, (one,) in given:
            store.model.init(plan, one.ranks[0], kind)
            overwrite_arguments(one)


@runs(Reset)
def reset(interpreter: Interpreter, store: ModelledStore, op: Reset) -> None:
    interpreter.replace(store, store.distinct(op.keys))


@runs(Broadcast)
def broadcast(interpreter: Interpreter, store: ModelledStore, op: Broadcast) -> None:
    plans = store.distinct(op.keys)
    given = one_each(store, plans, interpreter.operation)
    keys, values = forms(given, interpreter.bare)
    outs, writes, errors = out_form(store, plans, op.outs, interpreter.bare)
    errors += store.forbidden + store.inadmissible(plans)
    store.call(lambda: store.kv.broadcast(keys, values, outs), errors, reads=True)
    if not errors:
        for plan, (one,) in given:
            if plan.key in store.model.values:
                store.model.reset(plan.key, one.ranks[0])
            else:
                store.model.init(plan, one.ranks[0], "sum")
        store.written(writes)
