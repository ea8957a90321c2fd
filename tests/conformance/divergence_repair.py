"""Stores that give all ranks the root's values where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

import ncclkv
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import full, pulled, same, total
from tests.conformance.overwrite import (
    WRONG,
    last,
    open_verified,
    overwrite,
    overwrite_pulls,
    restore_pulls,
    uncounted_barrier,
    weight,
)
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


@case(sizes=SEVERAL)
def an_overwritten_value_is_repaired_before_a_pull_returns(create: Stores) -> None:
    kv = open_verified(create, repair=True)
    kv.push(["w", "b"], [full(kv.rank + 1), full(1)])
    outliers = overwrite(kv, "w")
    outs = [current_buffers().put(full(0)), current_buffers().put(full(0))]
    kv.pull(["w", "b"], out=outs)
    same(outs[0], total(kv) if outliers else WRONG)
    same(outs[1], kv.num_workers)
    assert kv.repaired == bool(outliers)
    same(pulled(kv, "w"), total(kv) if outliers else WRONG)
    kv.barrier()
    assert kv.repaired == bool(outliers)


@case(sizes=SEVERAL)
def without_a_pull(create: Stores) -> None:
    kv = open_verified(create, repair=True)
    kv.push(["w", "b"], [full(kv.rank + 1), full(1)])
    outliers = [*overwrite(kv, "w"), *overwrite(kv, "b")]
    kv.wait()
    same(kv.pull("w", local=True), total(kv) if outliers else WRONG)
    # The second overwrite began with a wait, which repaired the first.
    assert kv.repaired == (2 if outliers else 0)


@case(sizes=SEVERAL)
def optimizer_states_are_repaired_with_the_value(create: Stores) -> None:
    """After a repair the store continues like a store that was never changed."""
    stores = [open_verified(create, repair=True), create()]
    stores[1].init(["w", "b"], [full(2), full(4)])
    for kv in stores:
        kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))
        kv.pushpull(["w", "b"], [full(kv.rank + 1), full(1)], out=[full(0), full(0)])
    kv = stores[0]
    outliers = overwrite(kv, "w")
    if not outliers:
        return  # a shared value has no second copy to repair from
    if kv.rank == last(kv) and create.update_on == "every_rank":
        for array in context_of(kv).engine.rule.states(context_of(kv).engine.layout["w"]).values():
            current_buffers().write(array, WRONG)
    context_of(kv).comm.synchronize()
    uncounted_barrier(kv)
    kv.wait()
    assert kv.repaired == 1
    for _ in range(2):
        outs = [current_buffers().put(full(0)) for _ in stores]
        for kv, out in zip(stores, outs, strict=True):
            kv.push(["w", "b"], [full(kv.rank + 1), full(1)])
            kv.pull("w", out=out)
        assert np.array_equal(current_buffers().get(outs[0]), current_buffers().get(outs[1]))
    assert stores[0].repaired == 1


@case(sizes=SEVERAL)
def the_roots_values_win(create: Stores) -> None:
    """The root's values win even if all other ranks agree on another value."""
    root = 1
    kv = open_verified(create, repair=True, root=root)
    if kv.rank == root:
        current_buffers().write(context_of(kv).engine.layout.pending["w"], WRONG)
    context_of(kv).comm.synchronize()
    uncounted_barrier(kv)
    same(pulled(kv, "w"), WRONG)
    kv.push("b", full(1))
    same(pulled(kv, "w"), WRONG)
    same(pulled(kv, "b"), kv.num_workers)
    assert kv.repaired == 1


@case(sizes=SEVERAL)
def an_overwritten_pull_is_repeated(create: Stores) -> None:
    kv = open_verified(create, repair=True)
    kv.push("w", full(kv.rank + 1))
    kv.pull("w")
    overwrite_pulls(kv)
    out = current_buffers().put(full(0))
    original = context_of(kv).verify._checksums

    def checksums(*arguments: Any) -> Any:
        restore_pulls(kv)  # a single stray write
        return original(*arguments)

    context_of(kv).verify._checksums = checksums
    kv.pull("w", out=out)
    context_of(kv).verify._checksums = original
    same(out, total(kv))
    same(weight(kv, "w"), np.full(6, total(kv)))
    assert kv.repaired == 1


@case(sizes=SEVERAL)
def an_updater_that_differed_once(create: Stores) -> None:
    kv = open_verified(create, repair=True)
    wrong = [1]

    def update(key: Any, value: Any, stored: Any) -> None:
        stored += value + (wrong.pop() if wrong and kv.rank == last(kv) else 0)

    kv.set_updater(update)
    for step in range(1, 4):
        kv.push("w", full(kv.rank + 1))
        same(pulled(kv, "w"), 2 + step * total(kv))
    assert kv.repaired == (create.update_on == "every_rank")
