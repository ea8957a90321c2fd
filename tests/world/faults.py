"""Programs broken on purpose, each with the errors that its ranks must get.

`docs/reliability.md` promises these errors.  A fault is inserted between two steps.  A rank may
end after the last call that needs it: that is rightly no error for the others, whose `close` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

from tests.world import plan as p
from tests.world.draw import Draw, further

# Each error of a mismatch shows the lines of the calls.
LINES = "tests/world/"

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
    some : str
        A class that at least one of the others must have.
    seconds : float
        Seconds in which every rank must end, if the world takes no time from a rank.
    later : float
        Seconds that the rank itself may take beyond these.
    otherwise : Expectation or None
        Errors that are as right.
    """

    fault: str
    rank: int
    own: tuple[str, ...]
    others: tuple[str, ...]
    words: tuple[str, ...] = ()
    named: tuple[str, ...] = ("OrderMismatch", "SpecMismatch")
    some: str = ""
    seconds: float = 0.0
    later: float = 0.0
    otherwise: Expectation | None = None


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
    keys : list of int or str
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
            p.Pull(store, key),
            p.Barrier(store),
            p.AllReduce(store, 4),
            p.AllGather(store, 4),
            p.BroadcastObject(store),
            p.AllGatherObject(store),
            p.Reset(store, key),
            p.Broadcast(store, key),
            p.Init(store, (p.KeyPlan(further(self.plan, 8)),)),
        ]
        # Else ranks may push other keys, and the player waits in front of some pushes.
        if self.plan.missing == "error":
            found += [
                p.Wait(store),
                p.Push(store, key),
                p.PushPull(store, key),
                p.Group(store, key, key),
                p.Overlap(store, key),
            ]
        return found

    def death(self, step: p.Step) -> list[p.Step]:
        """Return the end of the rank's program, often in front of a call that needs the rank."""
        end = step if isinstance(step, p.Busy) else self.alone(step)
        return [end, p.Barrier(self.store)] if self.draws.chance(0.7) else [end]

    def mismatch(self, fault: str, error: str, *words: str) -> Expectation:
        """Return the expectation of one error on every rank, with words that tell the calls."""
        told = f"rank {self.rank}", *words
        return Expectation(fault, self.rank, (error,), (error,), told, seconds=MISMATCH_SECONDS)

    def shifted(self, fault: str, *calls: p.Step) -> Expectation:
        """Return the expectation of calls that meet other calls of the program.

        Values are agreed on before calls are compared, if both calls give keys values.
        """
        found = self.mismatch(fault, "OrderMismatch")
        if any(isinstance(call, (p.Init, p.Reset, p.Broadcast)) for call in calls):
            both = "OrderMismatch", "SpecMismatch"
            found = replace(found, own=both, others=both)
        return found


def break_program(
    program: p.Program, draws: Draw, faults: Sequence[Fault] | None = None
) -> tuple[p.Program, Expectation]:
    """Insert a drawn fault into a valid program of several ranks.

    Raises
    ------
    ValueError
        When none of the given faults fits the program, as one of an optimizer.
    """
    for _ in range(100):
        fault = draws.pick(faults or FAULTS)
        made = fault(_Place(draws, program))
        if made is not None:
            return _inserted(program, draws, fault, *made)
    raise ValueError(f"no fault fits {program}")


def _inserted(
    program: p.Program, draws: Draw, fault: Fault, steps: list[p.Step], expectation: Expectation
) -> tuple[p.Program, Expectation]:
    """Insert the steps of a fault at a drawn place."""
    at = draws.below(len(program.steps) + 1)
    broken = replace(program, steps=(*program.steps[:at], *steps, *program.steps[at:]))
    if fault in DEATHS and not any(_needs_all(step, program) for step in broken.steps[at:]):
        expectation = replace(expectation, others=(*expectation.others, ""), some="")
    busy = [step.seconds for step in program.steps if isinstance(step, p.Busy)]
    return broken, replace(expectation, seconds=expectation.seconds + fsum(busy))


def verb(step: p.Step) -> str:
    """Return the name of a step's verb."""
    return {
        p.BroadcastObject: "broadcast_object",
        p.AllGatherObject: "allgather_object",
    }.get(type(step), type(step).__name__.lower())


def _needs_all(step: p.Step, program: p.Program) -> bool:
    """Return whether no rank can end a step before every rank has begun it."""
    if isinstance(step, p.ByThread):
        return _needs_all(step.call, program)
    if isinstance(step, p.PushPull):
        return program.stores[step.store].missing == "error"
    return isinstance(step, (p.Barrier, p.AllReduce, p.AllGather, p.AllGatherObject))


def _omits(place: _Place) -> tuple[list[p.Step], Expectation]:
    call = place.draws.pick(place.calls())
    return [place.others(call)], place.shifted("omits a call", call)


def _adds(place: _Place) -> tuple[list[p.Step], Expectation]:
    call = place.draws.pick(place.calls())
    return [place.alone(call)], place.shifted("makes a further call", call)


def _other_verb(place: _Place) -> tuple[list[p.Step], Expectation]:
    one, other = place.draws.shuffled(place.calls())[:2]
    steps = [place.alone(one), place.others(other)]
    # The player flushes a store with missing="zeros" in front of some calls.
    words = (LINES,) if place.plan.missing == "zeros" else (verb(one), verb(other), LINES)
    return steps, place.mismatch("another verb", "OrderMismatch", *words)


def _other_order(place: _Place) -> tuple[list[p.Step], Expectation]:
    one, other = place.draws.shuffled(place.calls())[:2]
    steps = [place.alone(one), place.alone(other), place.others(other), place.others(one)]
    return steps, place.shifted("another order", one, other)


def _other_priority(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    if place.plan.missing == "zeros":
        return None  # ranks need not push the same keys
    one, other = (p.PushPull(place.store, (place.keys[0],), priority=each) for each in (1, 2))
    steps = [place.alone(one), place.others(other)]
    return steps, place.mismatch("another priority", "OrderMismatch")


def _other_store(place: _Place) -> tuple[list[p.Step], Expectation]:
    steps = [place.alone(p.Create(len(place.program.stores), place.plan)), p.Barrier(place.store)]
    return steps, place.mismatch("a store of its own", "OrderMismatch", "create")


def _other_key(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    if len(place.keys) < 2:
        return None
    one, other = place.draws.shuffled(place.keys)[:2]
    kinds = [p.PushPull, p.Pull, p.Reset, p.Broadcast]
    kind = place.draws.pick(kinds if place.plan.missing == "zeros" else [*kinds, p.Push, p.Overlap])
    steps = [place.alone(kind(place.store, (one,))), place.others(kind(place.store, (other,)))]
    # The ranks agree on new values before any call is compared.
    error = "SpecMismatch" if kind in (p.Reset, p.Broadcast) else "OrderMismatch"
    # A player that has pushes in flight of one of the keys waits before its call.
    words = () if place.plan.missing == "zeros" else (repr(one), repr(other))
    return steps, place.mismatch("another key", error, *words)


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
    one = p.KeyPlan(further(place.plan, 8), (3,), "f8", "sum")
    other = place.draws.pick(
        [
            replace(one, shape=(4,)),
            replace(one, dtype="f4"),
            replace(one, op="max"),
            replace(one, key=further(place.plan, 9)),
        ]
    )
    steps = [place.alone(p.Init(place.store, (one,))), place.others(p.Init(place.store, (other,)))]
    return steps, place.mismatch("another spec", "SpecMismatch", repr(one.key))


def _other_options(place: _Place) -> tuple[list[p.Step], Expectation]:
    changed = replace(place.plan, verify_every=place.plan.verify_every + 1)
    steps = [place.alone(p.Create(place.store, changed)), place.others(p.Create(place.store))]
    return steps, place.mismatch("another option", "SpecMismatch", "verify_every")


def _other_optimizer(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    if not isinstance(place.plan.optimizer, p.Sgd):
        return None
    one, other = (p.SetOptimizer(place.store, p.Sgd(rate, 0.5)) for rate in (0.75, 0.625))
    steps = [place.alone(one), place.others(other)]
    return steps, place.mismatch("another optimizer", "SpecMismatch", "0.75", "0.625")


def _other_rate(place: _Place) -> tuple[list[p.Step], Expectation] | None:
    plan = place.plan
    if not isinstance(plan.optimizer, p.Sgd) or plan.optimizer.halved_after:
        return None
    if plan.missing == "zeros" or plan.update_on == "root":
        return None
    steps = [
        p.SetOptimizer(place.store, p.Sgd(0.5)),
        place.alone(p.LearningRate(place.store, 0.75)),
        p.Push(place.store, tuple(place.keys)),
    ]
    return steps, place.mismatch("another learning rate", "OrderMismatch", "0.75")


def crossing(place: _Place) -> tuple[list[p.Step], Expectation]:
    """Let ranks use two stores in another order."""
    stores = place.program.stores
    first, second = place.draws.shuffled(range(max(2, len(stores))))[:2]
    created = [p.Create(1, place.plan)] if len(stores) < 2 else []
    kind = place.draws.pick([p.Barrier, p.AllReduce, p.AllGatherObject])
    steps = [
        *created,
        place.others(kind(first)),
        place.alone(kind(second)),
        place.others(kind(second)),
        place.alone(kind(first)),
    ]
    return steps, place.mismatch("two stores in another order", "OrderMismatch")


def _raises(place: _Place) -> tuple[list[p.Step], Expectation]:
    return place.death(p.Raise()), Expectation(
        "raises",
        place.rank,
        ("OnPurpose",),
        ("RankLost",),
        (f"rank {place.rank}", "OnPurpose"),
        seconds=LOST_SECONDS,
    )


def _raises_inside(place: _Place) -> tuple[list[p.Step], Expectation]:
    store, keys, fails = place.store, tuple(place.keys), (place.rank,)
    step = place.draws.pick(
        [
            p.Group(store, keys, keys, fails),
            p.Overlap(store, keys, fails=fails),
            p.Uneven(store, keys, (1, 2), fails=fails),
        ]
    )
    # Ranks may find the early end of the block before they hear the farewell with its cause.
    expectation = replace(
        _raises(place)[1],
        fault="raises inside a block",
        others=("RankLost", "OrderMismatch"),
        words=(f"rank {place.rank}",),
    )
    return [step, p.Barrier(store)], expectation


def _forgets(place: _Place) -> tuple[list[p.Step], Expectation]:
    step = p.Overlap(place.store, tuple(place.keys), forgets=(place.rank,))
    return [step, p.Barrier(place.store)], Expectation(
        "pushes no key in an overlap block",
        place.rank,
        ("UsageError",),
        ("OrderMismatch", "RankLost"),
        (f"rank {place.rank}",),
        seconds=MISMATCH_SECONDS,
    )


def _returns(place: _Place) -> tuple[list[p.Step], Expectation]:
    return place.death(p.Return()), Expectation(
        "returns early",
        place.rank,
        ("",),
        ("RankLost",),
        (f"rank {place.rank}",),
        seconds=LOST_SECONDS,
    )


def _sleeps(place: _Place) -> tuple[list[p.Step], Expectation]:
    longest = max(_timeout(place.program, each) for each in place.program.stores)
    return place.death(p.Busy(place.rank, 1.5 * longest)), Expectation(
        "never calls in time",
        place.rank,
        # What the others have sent before they raised still arrives.
        ("RankLost", "CommTimeout", ""),
        ("CommTimeout", "RankLost"),
        (f"rank {place.rank}",),
        some="CommTimeout",
        seconds=longest + TIMEOUT_SECONDS,
        later=0.5 * longest,
    )


def _slow(place: _Place) -> tuple[list[p.Step], Expectation]:
    shortest = min(_timeout(place.program, each) for each in place.program.stores)
    return [p.Busy(place.rank, 0.5 * shortest)], Expectation(
        "is slow", place.rank, ("",), ("",), seconds=0.5 * shortest + TIMEOUT_SECONDS
    )


def _timeout(program: p.Program, store: p.StorePlan) -> float:
    return program.timeout if store.timeout is None else store.timeout


DEATHS: tuple[Fault, ...] = (_raises, _raises_inside, _returns, _sleeps)
"""Faults after which a rank makes no calls, or none in time."""

FAULTS: tuple[Fault, ...] = (
    _omits,
    _adds,
    _other_verb,
    _other_order,
    _other_key,
    _other_priority,
    _other_arguments,
    _other_spec,
    _other_options,
    _other_store,
    _other_optimizer,
    _other_rate,
    crossing,
    _forgets,
    _slow,
    *DEATHS,
)
