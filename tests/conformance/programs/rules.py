"""Operations that change the rule of a store."""

from __future__ import annotations

from ncclkv.errors import DTypeMismatch
from tests.conformance.programs.interpreter import Interpreter, runs
from tests.conformance.programs.model import Adder, Descent
from tests.conformance.programs.modelled_store import ModelledStore, Recorder
from tests.conformance.programs.plan import SetOptimizer, SetUpdater, Tune


@runs(SetUpdater)
def set_updater(interpreter: Interpreter, store: ModelledStore, op: SetUpdater) -> None:
    # If owners run it, an updater that raises ends the updates of its rank alone: no such program.
    raises_at = None if store.model.divided else op.raises_at
    adder = Adder(op.factor, None if raises_at is None else store.key(raises_at).key)
    updater = Recorder(adder)
    given = updater if op.as_object else updater.update
    store.call(lambda: store.kv.set_updater(given), store.forbidden)
    if not store.in_group:
        _replaced(store)
        store.model.rule = adder
        store.updater = updater
        store.disposable = op.as_object


@runs(SetOptimizer)
def set_optimizer(interpreter: Interpreter, store: ModelledStore, op: SetOptimizer) -> None:
    which = op.which % len(interpreter.optimizers)
    chosen, given = interpreter.optimizers[which], interpreter.hyperparameters[which]
    rule, new = store.model.rule, Descent(given)
    refused = [
        DTypeMismatch for value in store.model.values.values() if not new.admits(value.dtype)
    ]
    errors = store.forbidden + refused
    store.call(lambda: store.kv.set_optimizer(chosen), errors)
    before = rule.hyperparameters if isinstance(rule, Descent) else None
    if not errors and before is not given:
        if before is not None and bool(before.momentum) == bool(given.momentum):
            new.momenta = rule.momenta
        _replaced(store)
        store.model.rule = new


def _replaced(store: ModelledStore) -> None:
    """Apply the old rule to pending pushes, and drop it."""
    store.model.apply(store.model.values)
    if store.updater is not None:
        assert store.updater.disposed == store.disposable, (
            f"disposed {store.updater.disposed} times"
        )
    store.updater = None


@runs(Tune)
def tune(interpreter: Interpreter, store: ModelledStore, op: Tune) -> None:
    which = op.which % len(interpreter.optimizers)
    for each in (interpreter.optimizers[which], interpreter.hyperparameters[which]):
        if op.name.endswith("mult"):
            getattr(each, op.name)[store.key(op.key).key] = op.value
        else:
            setattr(each, op.name, op.value)
