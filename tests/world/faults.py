"""Programs broken on purpose, each with the errors that its ranks must get.

`docs/reliability.md` promises these errors.  A fault is inserted between two steps; `close` of
every store follows it and needs all ranks, so no fault comes too late to matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.world import plan as p
from tests.world.draw import Draw

MISMATCH_SECONDS = 2.0
LOST_SECONDS = 1.0
TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class Expectation:
    """Errors that a broken program must raise.

    Attributes
    ----------
    fault : str
        The kind of fault.
    rank : int
        The rank that differs from the others.
    own, others : tuple of str
        Classes of errors that are right on that rank, and on the others; an empty name stands for
        the end without an error.
    words : tuple of str
        Texts in every error of the others, and in that rank's own if it is one of `named`.
    named : tuple of str
        Classes of that rank's own error that have `words`, too.
    seconds : float
        Seconds in which every rank must end, if the world takes no time from a rank.
    """

    fault: str
    rank: int
    own: tuple[str, ...]
    others: tuple[str, ...]
    words: tuple[str, ...] = ()
    named: tuple[str, ...] = ("OrderMismatch", "SpecMismatch")
    seconds: float = 0.0


Fault = Callable[["_Place"], "tuple[list[p.Step], Expectation] | None"]


class _Place:
    """The place of a fault, and its draws.

    Attributes
    ----------
    draws : Draw
    program : Program
    rank : int
        The rank that differs.
    store : int
    plan : StorePlan
    keys : list of str
    """

    def __init__(self, draws: Draw, program: p.Program) -> None:
        self.draws = draws
        self.program = program
        self.rank = draws.below(program.size)
        self.store = draws.below(len(program.stores))
        self.plan = program.stores[self.store]
        self.keys = [key.key for key in self.plan.keys]

    def alone(self, step: p.Step) -> p.Step:
        """Return a step of the rank alone."""
        return p.Only((self.rank,), step)

    def others(self, step: p.Step) -> p.Step:
        """Return a step of all other ranks."""
        ranks = [rank for rank in range(self.program.size) if rank != self.rank]
        return p.Only(tuple(ranks), step)

    def calls(self) -> list[p.Step]:
        """Return one call of each kind that ranks must make together."""
        store, key = self.store, (self.draws.pick(self.keys),)
        found: list[p.Step] = [
            p.PushPull(store, key),
            p.Pull(store, key),
            p.Barrier(store),
            p.Wait(store),
            p.AllReduce(store, 4),
            p.AllGather(store, 4),
            p.BroadcastObject(store),
            p.AllGatherObject(store),
            p.Reset(store, key),
            p.Broadcast(store, key),
            p.Group(store, key, key),
            p.Init(store, (p.KeyPlan("z"),)),
            p.Create(store),
        ]
        if self.plan.missing == "error":
            found += [p.Push(store, key), p.Overlap(store, key)]
        return found

    def mismatch(self, fault: str, error: str, *words: str) -> Expectation:
        """Return the expectation of one error on every rank."""
        named = f"rank {self.rank}", *words
        return Expectation(fault, self.rank, (error,), (error,), named, seconds=MISMATCH_SECONDS)


def break_program(program: p.Program, draws: Draw) -> tuple[p.Program, Expectation]:
    """Insert a drawn fault into a valid program of several ranks."""
    while True:
        fault = draws.pick(FAULTS)
        made = fault(_Place(draws, program))
        if made is not None:
            break
    steps, expectation = made
    at = draws.below(len(program.steps) + 1)
    broken = replace(program, steps=(*program.steps[:at], *steps, *program.steps[at:]))
    busy = [step.seconds for step in broken.steps if isinstance(step, p.Busy)]
    return broken, replace(expectation, seconds=expectation.seconds + sum(busy))


def _omits(place: _Place) -> tuple[list[p.Step], Expectation]:
    call = place.draws.pick(place.calls())
    return [place.others(call)], place.mismatch("omits a call", "OrderMismatch")


def _adds(place: _Place) -> tuple[list[p.Step], Expectation]:
    call = place.draws.pick(place.calls())
    return [place.alone(call)], place.mismatch("makes a further call", "OrderMismatch")


def _other_verb(place: _Place) -> tuple[list[p.Step], Expectation]:
    one, other = place.draws.shuffled(place.calls())[:2]
    steps = [place.alone(one), place.others(other)]
    return steps, place.mismatch("another verb", "OrderMismatch")


def _other_key(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    if len(place.keys) < 2:
        return None
    one, other = place.draws.shuffled(place.keys)[:2]
    kinds = [p.PushPull, p.Pull, p.Reset, p.Broadcast]
    kind = place.draws.pick(kinds if place.plan.missing == "zeros" else [*kinds, p.Push, p.Overlap])
    steps = [place.alone(kind(place.store, (one,))), place.others(kind(place.store, (other,)))]
    # The ranks agree on new values before any call is compared.
    error = "SpecMismatch" if kind in (p.Reset, p.Broadcast) else "OrderMismatch"
    return steps, place.mismatch("another key", error, repr(one), repr(other))


def _other_arguments(place: _Place) -> tuple[list[p.Step], Expectation]:
    store = place.store
    one, other = place.draws.pick(
        [
            (p.AllReduce(store, 4), p.AllReduce(store, 5)),
            (p.AllReduce(store, 4), p.AllReduce(store, 4, "f4")),
            (p.AllReduce(store, 4), p.AllReduce(store, 4, "f8", "max")),
            (p.AllGather(store, 4), p.AllGather(store, 5)),
            (p.BroadcastObject(store), p.BroadcastObject(store, 1)),
        ]
    )
    steps = [place.alone(one), place.others(other)]
    return steps, place.mismatch("other arguments", "OrderMismatch")


def _other_spec(place: _Place) -> tuple[list[p.Step], Expectation]:
    one = p.KeyPlan("z", (3,), "f8", "sum")
    other = place.draws.pick(
        [
            replace(one, shape=(4,)),
            replace(one, dtype="f4"),
            replace(one, op="max"),
            replace(one, key="y"),
        ]
    )
    steps = [place.alone(p.Init(place.store, (one,))), place.others(p.Init(place.store, (other,)))]
    return steps, place.mismatch("another spec", "SpecMismatch", "'z'")


def _other_options(place: _Place) -> tuple[list[p.Step], Expectation]:
    changed = replace(place.plan, verify_every=place.plan.verify_every + 1)
    steps = [place.alone(p.Create(place.store, changed)), place.others(p.Create(place.store))]
    return steps, place.mismatch("another option", "SpecMismatch", "verify_every")


def _other_optimizer(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    if place.plan.optimizer is None:
        return None
    one, other = (p.SetOptimizer(place.store, p.Sgd(rate, 0.5)) for rate in (0.75, 0.625))
    steps = [place.alone(one), place.others(other)]
    return steps, place.mismatch("another optimizer", "SpecMismatch", "0.75", "0.625")


def _other_rate(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    plan = place.plan
    scheduled = plan.optimizer is None or plan.optimizer.halved_after
    if scheduled or plan.missing == "zeros" or plan.update_on == "root":
        return None
    steps = [
        p.SetOptimizer(place.store, p.Sgd(0.5)),
        place.alone(p.LearningRate(place.store, 0.75)),
        p.Push(place.store, tuple(place.keys)),
    ]
    return steps, place.mismatch("another learning rate", "OrderMismatch", "0.75")


def _crossing(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    if len(place.program.stores) < 2:
        return None
    first, second = place.draws.shuffled(range(len(place.program.stores)))[:2]
    kind = place.draws.pick([p.Barrier, p.AllReduce, p.AllGatherObject])
    steps = [
        place.others(kind(first)),
        place.alone(kind(second)),
        place.others(kind(second)),
        place.alone(kind(first)),
    ]
    return steps, place.mismatch("two stores in another order", "OrderMismatch")


def _raises(place: _Place) -> tuple[list[p.Step], Expectation]:
    return [place.alone(p.Raise())], Expectation(
        "raises",
        place.rank,
        ("OnPurpose",),
        ("RankLost",),
        (f"rank {place.rank}", "OnPurpose"),
        seconds=LOST_SECONDS,
    )


def _returns(place: _Place) -> tuple[list[p.Step], Expectation]:
    return [place.alone(p.Return())], Expectation(
        "returns early",
        place.rank,
        ("",),
        ("RankLost",),
        (f"rank {place.rank}",),
        seconds=LOST_SECONDS,
    )


def _sleeps(place: _Place) -> tuple[list[p.Step], Expectation]:
    longest = max(_timeout(place.program, each) for each in place.program.stores)
    return [p.Busy(place.rank, 1.5 * longest)], Expectation(
        "never calls in time",
        place.rank,
        ("RankLost", "CommTimeout"),
        ("CommTimeout", "RankLost"),
        (f"rank {place.rank}",),
        seconds=TIMEOUT_SECONDS,  # the rank's own end; its sleep is counted with all others
    )


def _slow(place: _Place) -> tuple[list[p.Step], Expectation]:
    shortest = min(_timeout(place.program, each) for each in place.program.stores)
    return [p.Busy(place.rank, 0.5 * shortest)], Expectation(
        "is slow", place.rank, ("",), ("",), seconds=TIMEOUT_SECONDS
    )


def _timeout(program: p.Program, store: p.StorePlan) -> float:
    return program.timeout if store.timeout is None else store.timeout


FAULTS: tuple[Fault, ...] = (
    _omits,
    _adds,
    _other_verb,
    _other_key,
    _other_arguments,
    _other_spec,
    _other_options,
    _other_optimizer,
    _other_rate,
    _crossing,
    _raises,
    _returns,
    _sleeps,
    _slow,
)
