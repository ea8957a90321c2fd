"""Random programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.conformance.programs import plan as p
from tests.conformance.programs.arrays import LAYOUTS, UNWRITABLE
from tests.conformance.programs.misuse import MISUSES

SHAPES = ((3,), (), (2, 3), (0,), (70,), (4, 1, 2), (2, 0, 3), (5000,))
FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
DTYPES = (*FLOATS, *SIGNED, *(f"u{name}" for name in SIGNED), "bool", "complex64", "complex128")
INTS = (3, 7, -2, 12, 0)
STRS = ("w", "b", "a", "zz", "layer.0")
HYPERPARAMETERS = {
    "learning_rate": (1.0, 0.5, 0.25),
    "wd": (0.0, 0.25),
    "rescale_grad": (1.0, 0.5),
    "clip_gradient": (None, 2.0, 8.0),
    "lr_mult": (1.0, 0.5, 0.0),
    "wd_mult": (1.0, 0.5, 0.0),
}
WRITABLE = tuple(layout for layout in LAYOUTS if layout not in UNWRITABLE) * 2
CAST = (None, None, None, "float64", "float32", "int32", "bool", "complex128")


def often(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Draw from several strategies, each as often as its count says."""
    expanded = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.sampled_from(expanded).flatmap(lambda strategy: strategy)


index = st.integers(0, 4)
some_keys = st.lists(index, min_size=1, max_size=4).map(tuple)
priority = st.integers(-2, 2)
store = st.integers(0, 2)


def _op_for(dtype: str, op: str) -> str:
    """Return the op, or sum if the op has no meaning for the dtype.

    Products of floats may round, and then depend on their order, so those of integers are drawn.
    """
    unordered = dtype.startswith("complex") and op in ("max", "min")
    rounded = op == "prod" and not dtype.startswith(("int", "uint", "bool"))
    return "sum" if unordered or rounded or (dtype, op) == ("bool", "avg") else op


@st.composite
def stores(draw: st.DrawFn) -> p.StorePlan:
    """Draw a store whose keys have few kinds, so that they share buckets."""
    names = draw(st.permutations(draw(st.sampled_from((INTS, STRS)))))
    dtypes = st.sampled_from(draw(st.sampled_from((FLOATS, DTYPES))))
    kind = st.tuples(dtypes, st.sampled_from(("sum", "sum", "avg", "max", "min", "prod")))
    kinds = draw(st.lists(kind, min_size=1, max_size=2))
    keys = []
    for name in names[: draw(st.integers(2, 5))]:
        dtype, op = draw(st.sampled_from(kinds))
        keys.append(p.KeyPlan(name, draw(st.sampled_from(SHAPES)), dtype, _op_for(dtype, op)))
    return p.StorePlan(
        tuple(keys),
        draw(st.sampled_from(("every_rank", "root", "sharded"))),
        draw(st.integers(0, 3)),
        draw(st.sampled_from((1024, 0, 256, None))),
    )


SOURCES = (
    "fresh",
    "fresh",
    "fresh",
    "gradient",
    "gradient",
    "stored",
    "previous",
    "shared",
    "shared",
)
values = st.builds(p.Value, st.sampled_from(SOURCES), index, st.sampled_from(LAYOUTS))
items = st.lists(
    st.builds(p.Item, index, st.lists(values, min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=4,
).map(tuple)
plain_outs = st.builds(p.Outs, st.just("plain"), st.none(), st.integers(1, 2), st.booleans())
odd_outs = st.builds(
    p.Outs,
    st.sampled_from((*WRITABLE, *LAYOUTS)),
    st.sampled_from(CAST),
    st.integers(1, 2),
    st.booleans(),
)
outs = often((2, plain_outs), (2, odd_outs))
outs_or_none = often((1, st.none()), (3, outs))

moves = often(
    (6, st.builds(p.Push, store, items, priority)),
    (3, st.builds(p.PushPull, store, items, outs_or_none, priority)),
    (3, st.builds(p.Pull, store, some_keys, outs_or_none)),
    (1, st.builds(p.Pull, store, some_keys, outs_or_none, st.just(True))),
)
tunes = st.sampled_from(sorted(HYPERPARAMETERS)).flatmap(
    lambda name: st.builds(
        p.Tune, store, index, st.just(name), st.sampled_from(HYPERPARAMETERS[name]), index
    )
)
stumbles = often((3, st.none()), (1, index))
updaters = st.builds(p.SetUpdater, store, st.integers(1, 2), stumbles, st.booleans())
optimizers = st.builds(p.SetOptimizer, store, index)
misuses = st.builds(p.Misuse, store, st.sampled_from(sorted(MISUSES)), index)
single = often(
    (20, moves),
    (3, tunes),
    (1, updaters),
    (1, optimizers),
    (1, st.builds(p.Init, store, some_keys)),
    (2, st.builds(p.Reset, store, some_keys)),
    (2, st.builds(p.Broadcast, store, some_keys, outs)),
    (2, st.builds(p.Wait, store, often((1, st.none()), (2, some_keys)))),
    (1, st.builds(p.Barrier, store)),
    (2, st.builds(p.Look, store, index, st.integers(1, 3))),
    (3, misuses),
)
groups = st.builds(
    p.Group,
    store,
    st.lists(often((4, moves), (1, single)), min_size=1, max_size=8).map(tuple),
    st.sampled_from((False, False, False, True)),
)
sgd = st.builds(
    p.SgdPlan,
    st.sampled_from(HYPERPARAMETERS["learning_rate"]),
    st.sampled_from((0.0, 0.5)),
    st.sampled_from(HYPERPARAMETERS["wd"]),
    st.sampled_from(HYPERPARAMETERS["rescale_grad"]),
    st.sampled_from(HYPERPARAMETERS["clip_gradient"]),
)


@st.composite
def programs(draw: st.DrawFn) -> p.Program:
    """Draw stores, most of whose keys are initialised first, and operations on them."""
    chosen = draw(st.lists(stores(), min_size=1, max_size=3))
    ops: list[p.Op] = []
    for store, plan in enumerate(chosen):
        known = draw(st.integers(1, len(plan.keys)) | st.just(len(plan.keys)))
        ops.append(p.Init(store, tuple(range(known))))
        if known < len(plan.keys) and draw(st.booleans()):
            # Local queries on some ranks alone seal the layout there before the other ranks do.
            ops.append(p.Look(store, 0, draw(st.integers(1, 3))))
            ops.append(p.Init(store, tuple(range(known, len(plan.keys)))))
        if rule := draw(often((1, st.none()), (1, updaters), (2, optimizers))):
            ops.append(replace(rule, store=store))
    # A list of lists: one drawn list alone is rarely long.
    for part in draw(st.lists(st.lists(often((6, single), (1, groups)), max_size=8), max_size=8)):
        ops += part
    given = draw(st.lists(sgd, min_size=1, max_size=2))
    return p.Program(tuple(chosen), tuple(given), tuple(ops))
