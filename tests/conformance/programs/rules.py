"""Operations that change the rule of a store."""

from __future__ import annotations

from ncclkv.errors import DTypeMismatch
from tests.conformance.programs.model import Adder, Descent
from tests.conformance.programs.plan import SetOptimizer, SetUpdater, Tune
from tests.conformance.programs.rank import Recorder, Seat
from tests.conformance.programs.stage import Stage, does


@does(SetUpdater)
def set_updater(stage: Stage, seat: Seat, op: SetUpdater) -> None:
    adder = Adder(op.factor, None if op.raises_at is None else seat.key(op.raises_at).key)
    updater = Recorder(adder)
    given = updater if op.as_object else updater.update
    seat.call(lambda: seat.kv.set_updater(given), seat.forbidden)
    if not seat.in_group:
        _replaced(seat)
        seat.model.rule = adder
        seat.updater = updater
        seat.disposable = op.as_object


@does(SetOptimizer)
def set_optimizer(stage: Stage, seat: Seat, op: SetOptimizer) -> None:
    which = op.which % len(stage.optimizers)
    chosen, numbers = stage.optimizers[which], stage.numbers[which]
    rule, new = seat.model.rule, Descent(numbers)
    refused = [DTypeMismatch for value in seat.model.values.values() if not new.admits(value.dtype)]
    errors = seat.forbidden + refused
    seat.call(lambda: seat.kv.set_optimizer(chosen), errors)
    same = isinstance(rule, Descent) and rule.numbers is numbers
    if not errors and not same:
        _replaced(seat)
        seat.model.rule = new


def _replaced(seat: Seat) -> None:
    """Apply the old rule to pending pushes, and drop it."""
    seat.model.apply(seat.model.values)
    if seat.updater is not None:
        assert seat.updater.disposed == seat.disposable, f"disposed {seat.updater.disposed} times"
    seat.updater = None


@does(Tune)
def tune(stage: Stage, seat: Seat, op: Tune) -> None:
    which = op.which % len(stage.optimizers)
    for each in (stage.optimizers[which], stage.numbers[which]):
        if op.name.endswith("mult"):
            getattr(each, op.name)[seat.key(op.key).key] = op.number
        else:
            setattr(each, op.name, op.number)
