"""Stores that give all ranks the root's values where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

import ncclkv
from tests.conformance.capabilities import here
from tests.conformance.expect import full, pulled, same, total
from tests.conformance.overwrite import (
    WRONG,
    last,
    mend_pulls,
    spoil,
    spoil_pulls,
    together,
    watched,
    weight,
)
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


@case(sizes=SEVERAL)
def a_spoilt_value_is_mended_before_a_pull_returns(create: Stores) -> None:
    kv = watched(create, repair=True)
    kv.push(["w", "b"], [full(kv.rank + 1), full(1)])
    odd = spoil(kv, "w")
    outs = [here().put(full(0)), here().put(full(0))]
    kv.pull(["w", "b"], out=outs)
    same(outs[0], total(kv) if odd else WRONG)
    same(outs[1], kv.num_workers)
    assert kv.repaired == bool(odd)
    same(pulled(kv, "w"), total(kv) if odd else WRONG)
    kv.barrier()
    assert kv.repaired == bool(odd)


@case(sizes=SEVERAL)
def without_a_pull(create: Stores) -> None:
    kv = watched(create, repair=True)
    kv.push(["w", "b"], [full(kv.rank + 1), full(1)])
    odd = [*spoil(kv, "w"), *spoil(kv, "b")]
    kv.wait()
    same(kv.pull("w", local=True), total(kv) if odd else WRONG)
    # The second overwrite began with a wait, which repaired the first.
    assert kv.repaired == (2 if odd else 0)


@case(sizes=SEVERAL)
def what_an_optimizer_remembers_is_mended_with_it(create: Stores) -> None:
    """After a repair the store continues like a store that was never changed."""
    stores = [watched(create, repair=True), create()]
    stores[1].init(["w", "b"], [full(2), full(4)])
    for kv in stores:
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))
        kv.pushpull(["w", "b"], [full(kv.rank + 1), full(1)], out=[full(0), full(0)])
    kv = stores[0]
    odd = spoil(kv, "w")
    if not odd:
        return  # a shared value has no second copy to repair from
    if kv.rank == last(kv) and create.update_on == "every_rank":
        for array in context_of(kv).engine.rule.states(context_of(kv).engine.layout["w"]).values():
            here().write(array, WRONG)
    context_of(kv).comm.synchronize()
    together(kv)
    kv.wait()
    assert kv.repaired == 1
    for _ in range(2):
        outs = [here().put(full(0)) for _ in stores]
        for kv, out in zip(stores, outs, strict=True):
            kv.push(["w", "b"], [full(kv.rank + 1), full(1)])
            kv.pull("w", out=out)
        assert np.array_equal(here().get(outs[0]), here().get(outs[1]))
    assert stores[0].repaired == 1


@case(sizes=SEVERAL)
def the_roots_values_win(create: Stores) -> None:
    """The root's values win even if all other ranks agree on another value."""
    root = 1
    kv = watched(create, repair=True, root=root)
    if kv.rank == root:
        here().write(context_of(kv).engine.layout.pending("w"), WRONG)
    context_of(kv).comm.synchronize()
    together(kv)
    same(pulled(kv, "w"), WRONG)
    kv.push("b", full(1))
    same(pulled(kv, "w"), WRONG)
    same(pulled(kv, "b"), kv.num_workers)
    assert kv.repaired == 1


@case(sizes=SEVERAL)
def a_spoilt_pull_is_made_again(create: Stores) -> None:
    kv = watched(create, repair=True)
    kv.push("w", full(kv.rank + 1))
    kv.pull("w")
    spoil_pulls(kv)
    out = here().put(full(0))
    original = context_of(kv).verify._written

    def outs(*arguments: Any) -> Any:
        mend_pulls(kv)  # a single stray write
        return original(*arguments)

    context_of(kv).verify._written = outs
    kv.pull("w", out=out)
    context_of(kv).verify._written = original
    same(out, total(kv))
    same(weight(kv, "w"), np.full(6, total(kv)))
    assert kv.repaired == 1


@case(sizes=SEVERAL)
def an_updater_that_did_other_once(create: Stores) -> None:
    kv = watched(create, repair=True)
    wrong = [1]

    def update(key: Any, value: Any, stored: Any) -> None:
        stored += value + (wrong.pop() if wrong and kv.rank == last(kv) else 0)

    kv.set_updater(update)
    for step in range(1, 4):
        kv.push("w", full(kv.rank + 1))
        same(pulled(kv, "w"), 2 + step * total(kv))
    assert kv.repaired == (create.update_on == "every_rank")
