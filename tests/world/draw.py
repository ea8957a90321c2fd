"""Valid programs from a seed.

Only `random.Random.random` is used: its values are the same in every version of Python, and those
of ``choice`` or ``shuffle`` are not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum
from typing import TypeVar

import numpy as np

from tests.world import plan as p
from tests.world.coded import CODECS
from tests.world.layouts import LAYOUTS

T = TypeVar("T")


class Draw:
    """Draws from a seed."""

    def __init__(self, seed: object) -> None:
        self._random = random.Random(str(seed)).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def below(self, end: int) -> int:
        return int(self._random() * end)

    def real(self, end: float) -> float:
        return self._random() * end

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def weighted(self, choices: Sequence[T], weights: Sequence[float]) -> T:
        """Return a choice, each as often as its weight says."""
        left = self._random() * fsum(weights)  # `sum` rounds otherwise before Python 3.12
        for choice, weight in zip(choices, weights, strict=True):
            left -= weight
            if left < 0:
                return choice
        return choices[-1]

    def shuffled(self, choices: Sequence[T]) -> list[T]:
        return [
            each for _, _, each in sorted((self._random(), i, c) for i, c in enumerate(choices))
        ]

    def some(self, choices: Sequence[T]) -> tuple[T, ...]:
        """Return at least one of the choices, in a drawn order or in theirs."""
        found = [each for each in choices if self._random() < 0.5] or [self.pick(choices)]
        return tuple(self.shuffled(found) if self._random() < 0.3 else found)


NAMES: tuple[p.Keys, ...] = (("a", "b", "c", "d"), ("a", "b", "c", "d"), (3, 0, 11, 7))
SIZES = ((3,), (1,), (), (2, 3), (0,), (300,), (9000,))
DTYPES = ("f4", "f8", "i8", "i4", "f4", "f8", "i8", "f2", "c8", "c16", "i1", "u1", "?")
OPS = ("sum", "sum", "sum", "max", "min", "prod")
PLACEMENTS = ("every_rank", "every_rank", "root", "sharded")
BUCKETS = (25 << 20, 25 << 20, 0, 0, 256, 4096)
RATES = (0.5, 0.25, 0.125)
OPTIMIZERS = ("adam", "lamb", "lars", "nag", "rmsprop", "signum")
THREADED = 0.4
"""The part of the programs with calls that threads make for their ranks."""

SHARDED = 0.25
"""The part of the programs whose stores are all sharded: neighbours read each other's arrays."""

OPEN = 0.2
"""The part of the programs that end without `close`."""

COMPRESSED = 0.25
"""The part of the programs whose stores compress gradients."""

SIZE_WEIGHTS = (6.0, 3.0, 1.0, 2.0, 0.5, 2.0, 1.0)


def draw(
    seed: object, size: int, calls: int, *, busy: float = 3.0, timeout: float = 300.0
) -> p.Program:
    """Draw a valid program.

    Parameters
    ----------
    seed : object
        Anything with the same `str` on every run.
    size : int
        Count of ranks, 1 to 4.
    calls : int
        Count of steps.
    busy : float
        Seconds for which a rank may compute.
    timeout : float
        Seconds that ranks wait for each other.
    """
    draws = Draw(f"program {seed}")
    counts = (1, 1, 1, 2, 2, 3) if calls < 10 else (1, 1, 2, 2, 3)  # a creation is dear
    stores = tuple(_store(draws, timeout) for _ in range(draws.pick(counts)))
    habits = [weight * draws.pick((0.0, 0.3, 1.0, 1.0, 4.0)) for _, weight in KINDS]
    if not any(habits):
        habits = [weight for _, weight in KINDS]
    kinds = [kind for kind, _ in KINDS]
    steps = []
    for _ in range(calls):
        store = draws.below(len(stores))
        program = _Context(draws, size, store, stores, busy)
        steps.append(draws.weighted(kinds, habits)(program))
    if Draw(f"shards {seed}").chance(SHARDED):
        stores = tuple(replace(store, update_on="sharded") for store in stores)
    codes = Draw(f"codes {seed}")
    if codes.chance(COMPRESSED):
        stores = tuple(_compressed(codes, store) for store in stores)
    steps = _by_threads(Draw(f"threads {seed}"), size, steps)
    environment = _environment(draws)
    closes = not Draw(f"end {seed}").chance(OPEN)
    return p.Program(size, stores, tuple(steps), environment, timeout, closes)


def _by_threads(draws: Draw, size: int, steps: Sequence[p.Step]) -> list[p.Step]:
    """Let threads make calls of some programs; these draws leave those of the steps as they are."""
    rate = 0.5 if draws.chance(THREADED) else 0.0
    return [
        p.ByThread(draws.some(range(size)), each)
        if isinstance(each, (p.Push, p.PushPull, p.Pull, p.AllReduce)) and draws.chance(rate)
        else each
        for each in steps
    ]


def _environment(draws: Draw) -> tuple[tuple[str, str], ...]:
    """Draw how ranks share memory, and how many are on a node."""
    memory = draws.pick((None, None, "messages", "halves"))
    ranks = draws.pick((None, None, "1", "2"))
    given = ("NCCLKV_NODE_MEMORY", memory), ("NCCLKV_RANKS_PER_NODE", ranks)
    return tuple((name, value) for name, value in given if value is not None)


def _store(draws: Draw, timeout: float) -> p.StorePlan:
    """Draw the options and keys of a store."""
    rule = draws.weighted(("none", "sgd", "adds", "other"), (6, 2, 2, 0.7))
    kinds = _kinds(draws, rule)
    keys = tuple(
        p.KeyPlan(name, draws.weighted(SIZES, SIZE_WEIGHTS), *draws.pick(kinds))
        for name in draws.pick(NAMES)[: draws.pick((1, 2, 3, 4))]
    )
    chosen: p.Sgd | p.Other | None = None
    if rule == "other":
        chosen = p.Other(draws.pick(OPTIMIZERS))
    elif rule == "sgd":
        # A schedule counts the updates of the key that has most; the model has one key for that.
        chosen = _sgd(draws, scheduled=len(keys) == 1)
    return p.StorePlan(
        keys=keys,
        optimizer=chosen,
        adds=rule == "adds",
        update_on=draws.pick(PLACEMENTS),
        root=draws.below(2),
        bucket_bytes=draws.pick(BUCKETS),
        missing=draws.pick(("error",) * 5 + ("zeros",)),
        nonfinite=draws.pick(("ignore",) * 6 + ("raise", "skip_step")),
        verify_every=draws.pick((0, 0, 0, 1, 3)),
        timeout=2 * timeout if draws.chance(0.1) else None,
    )


def _compressed(draws: Draw, store: p.StorePlan) -> p.StorePlan:
    """Draw a compression for a store, and keys that it takes.

    Sums of a function leave integers of 16 bits, and other optimizers have a model without a
    compression.
    """
    name = draws.pick([*CODECS])
    if store.adds or isinstance(store.optimizer, p.Other):
        return store
    keys = tuple(
        replace(key, dtype="f4", op=draws.pick(("sum", "sum", "avg")), shape=draws.pick(SIZES))
        if draws.chance(0.8)
        else key
        for key in store.keys
    )
    if store.optimizer is not None:
        keys = tuple(replace(key, op="sum") for key in keys)
    return replace(store, keys=keys, compression=name)


def _kinds(draws: Draw, rule: str) -> list[tuple[str, str]]:
    """Draw the dtypes and ops of a store's keys, few, so that keys share buckets."""
    # Sums over steps leave the integers of 16 bits.
    dtypes = {"none": DTYPES, "adds": ("f8", "i8", "c16", "i1", "?")}.get(rule, ("f4", "f8"))
    kinds = []
    for _ in range(draws.pick((1, 1, 2))):
        dtype = draws.pick(dtypes)
        ops = ("sum",) if rule in ("sgd", "other") else OPS
        kinds.append((dtype, draws.pick([op for op in ops if takes(dtype, op)])))
    if rule != "adds" and draws.chance(0.15):
        averaged = [dtype for dtype in dtypes if takes(dtype, "avg")]
        kinds.append((draws.pick(averaged), "avg"))
    return kinds


def further(store: p.StorePlan, index: int) -> p.Key:
    """Return a key of that index, from 0 to 9, that a store does not have from the beginning."""
    return 20 + index if isinstance(store.keys[0].key, int) else f"n{index}"


def takes(dtype: str, op: str) -> bool:
    """Return whether stores have an op for a dtype."""
    kind = np.dtype(dtype).kind
    return op in ("sum", "avg") if kind == "c" else kind != "b" or op != "avg"


def _sgd(draws: Draw, *, scheduled: bool = False) -> p.Sgd:
    return p.Sgd(
        draws.pick(RATES),
        draws.pick((0.0, 0.0, 0.5)),
        draws.pick((0.0, 0.0, 0.25)),
        draws.pick((0, 1, 2)) if scheduled else 0,
    )


class _Context:
    """The store of the next step, and its draws.

    Attributes
    ----------
    draws : Draw
    size : int
    store : int
    plan : StorePlan
    keys : list of int or str
    others : list of int
        The other stores.
    busy : float
    """

    def __init__(
        self, draws: Draw, size: int, store: int, stores: Sequence[p.StorePlan], busy: float
    ) -> None:
        self.draws = draws
        self.size = size
        self.store = store
        self.plan = stores[store]
        self.keys = [key.key for key in self.plan.keys]
        self.others = [other for other in range(len(stores)) if other != store]
        self.busy = busy

    def some(self) -> p.Keys:
        return self.draws.some(self.keys)

    def without(self, keys: p.Keys) -> p.Pairs:
        """Draw ranks that do not push keys."""
        pairs = [(rank, key) for rank in range(self.size) for key in keys]
        return tuple(pair for pair in pairs if self.draws.chance(0.3))

    def layout(self) -> str:
        return self.draws.pick(LAYOUTS) if self.draws.chance(0.5) else "plain"

    def layout_or_views(self) -> str:
        return "views" if self.draws.chance(0.2) else self.layout()

    def rate(self) -> float | None:
        """Draw a change of the learning rate inside a step."""
        if self.plan.optimizer is None or not self.draws.chance(0.4):
            return None
        return self.draws.pick(RATES)

    def rank(self) -> int:
        return self.draws.below(self.size)


def _init(c: _Context) -> p.Step:
    if c.plan.optimizer is not None:
        return p.Barrier(c.store)
    name = further(c.plan, c.draws.below(3))
    dtype, op = _kinds(c.draws, "adds" if c.plan.adds else "none")[0]
    return p.Init(c.store, (p.KeyPlan(name, c.draws.pick(SIZES), dtype, op),))


def _push(c: _Context) -> p.Step:
    keys = c.some()
    without = c.without(keys) if c.plan.missing == "zeros" else ()
    arrays = 2 if c.draws.chance(0.15) else 1
    return p.Push(
        c.store,
        keys,
        without,
        c.draws.chance(0.4),
        arrays,
        c.draws.pick((0, 0, 0, 1, -1)),
        c.layout() if arrays == 2 else c.layout_or_views(),
        c.rate(),
        arrays == 2 and c.draws.chance(0.5),
    )


def _pull(c: _Context) -> p.Step:
    out, cast = c.draws.chance(0.5), c.draws.chance(0.2)
    layout, twice = c.layout() if out else "plain", c.draws.pick(("",) * 6 + ("keys", "outs"))
    return p.Pull(c.store, c.some(), out, layout, out and cast, twice)


def _push_pull(c: _Context) -> p.Step:
    out, cast = c.draws.chance(0.7), c.draws.chance(0.2)
    return p.PushPull(c.store, c.some(), out, 0, c.layout(), out and cast)


def _group(c: _Context) -> p.Step:
    fails = tuple(range(c.size)) if c.draws.chance(0.1) else ()
    return p.Group(c.store, c.some(), c.some(), fails, bool(fails), c.layout(), c.rate())


def _overlap(c: _Context) -> p.Step:
    keys, zeros = c.some(), c.draws.chance(0.4)
    without = c.without(keys) if zeros else ()
    threads = tuple(rank for rank in range(c.size) if c.draws.chance(0.25))
    inside = c.draws.pick(c.others) if c.others and c.draws.chance(0.3) else None
    turn, layout = c.draws.below(3), c.layout_or_views()
    return p.Overlap(
        c.store, keys, without, zeros, turn, threads, inside, layout=layout, rate=c.rate()
    )


def _uneven(c: _Context) -> p.Step:
    batches = tuple(c.draws.below(4) for _ in range(c.size))
    block = c.draws.pick(("", "", "group", "overlap"))
    return p.Uneven(c.store, c.some(), batches, c.draws.chance(0.5), block=block)


def _allreduce(c: _Context) -> p.Step:
    dtype = c.draws.pick(DTYPES)
    ops = [op for op in (*OPS, "avg") if takes(dtype, op)]
    size, layout = c.draws.pick((1, 1, 40, 5000)), c.layout()
    return p.AllReduce(c.store, size, dtype, c.draws.pick(ops), layout, c.draws.chance(0.3))


def _move(c: _Context) -> p.Step:
    empty = c.plan.optimizer is None and c.draws.chance(0.5)
    return p.Move(c.store, c.draws.pick(PLACEMENTS), c.draws.pick(BUCKETS), empty)


def _busy(c: _Context) -> p.Step:
    return p.Busy(c.rank(), c.draws.real(c.busy) * c.draws.pick((0.001, 0.1, 1.0)))


KINDS: list[tuple[Callable[[_Context], p.Step], float]] = [
    (_push, 10),
    (_pull, 5),
    (_push_pull, 5),
    (lambda c: p.Look(c.store, c.some(), c.draws.some(range(c.size)), c.draws.chance(0.5)), 2),
    (_group, 3),
    (_overlap, 5),
    (_uneven, 2),
    (lambda c: p.PushNonFinite(c.store, c.some(), c.rank()), 1),
    (lambda c: p.Reset(c.store, c.some(), c.layout()), 1.5),
    (lambda c: p.Broadcast(c.store, c.some(), c.layout()), 1),
    (_init, 1),
    (lambda c: p.Wait(c.store, c.draws.pick(((), c.some()))), 2),
    (lambda c: p.Barrier(c.store), 2.5),
    (_allreduce, 3),
    (lambda c: p.AllGather(c.store, c.draws.pick((1, 40, 3000))), 1.5),
    (lambda c: p.BroadcastObject(c.store, c.rank()), 0.7),
    (lambda c: p.AllGatherObject(c.store), 0.7),
    (lambda c: p.SetOptimizer(c.store, _sgd(c.draws)), 0.7),
    (lambda c: p.LearningRate(c.store, c.draws.pick((0.5, 0.25, 0.0))), 2),
    (_busy, 2),
    (lambda c: p.Create(c.store), 0.5),
    (lambda c: p.Save(c.store), 0.08),
    (_move, 0.08),
    (lambda c: p.Load(c.store), 0.4),
]
"""Kinds of steps, and how frequent each is before a seed's habits."""
