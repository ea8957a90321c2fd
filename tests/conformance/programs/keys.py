"""Operations that give keys their values."""

from __future__ import annotations

from collections.abc import Sequence

from ncclkv.errors import KeyAlreadyInitialized
from tests.conformance.programs.forms import forms, one_each, out_form
from tests.conformance.programs.plan import Broadcast, Init, KeyPlan, Reset
from tests.conformance.programs.rank import Seat
from tests.conformance.programs.sources import scribble
from tests.conformance.programs.stage import Stage, does


@does(Init)
def initialise(stage: Stage, seat: Seat, op: Init) -> None:
    plans = seat.distinct(op.keys)
    for kind in dict.fromkeys(plan.op for plan in plans):
        _initialise(stage, seat, [plan for plan in plans if plan.op == kind], kind)


def _initialise(stage: Stage, seat: Seat, plans: Sequence[KeyPlan], kind: str) -> None:
    """Initialise keys of one op by one call."""
    given = one_each(seat, plans, stage.number)
    keys, values = forms(given, stage.bare)
    errors = [KeyAlreadyInitialized for plan in plans if plan.key in seat.model.values]
    errors += seat.forbidden + seat.inadmissible(plans)
    seat.call(lambda: seat.kv.init(keys, values, op=kind), errors)
    if not errors:
        for plan, (one,) in given:
            seat.model.init(plan, one.ranks[0], kind)
            scribble(one)


@does(Reset)
def reset(stage: Stage, seat: Seat, op: Reset) -> None:
    stage.replace(seat, seat.distinct(op.keys))


@does(Broadcast)
def broadcast(stage: Stage, seat: Seat, op: Broadcast) -> None:
    plans = seat.distinct(op.keys)
    given = one_each(seat, plans, stage.number)
    keys, values = forms(given, stage.bare)
    outs, writes, errors = out_form(seat, plans, op.outs, stage.bare)
    errors += seat.forbidden + seat.inadmissible(plans)
    seat.call(lambda: seat.kv.broadcast(keys, values, outs), errors, reads=True)
    if not errors:
        for plan, (one,) in given:
            if plan.key in seat.model.values:
                seat.model.reset(plan.key, one.ranks[0])
            else:
                seat.model.init(plan, one.ranks[0], "sum")
        seat.written(writes)
