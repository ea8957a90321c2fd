"""Ranks that have different numbers of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import OrderMismatch, UsageError
from tests.conformance.expect import check_words, full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores


def sgd(rate: float = 0.5) -> Any:
    return ncclkv.optimizer.SGD(learning_rate=rate, momentum=0.5, wd=0.25)


def batches(kv: Any) -> range:
    """Return the number of this rank's batches."""
    return range(1 + 2 * kv.rank)


def active(kv: Any, batch: int) -> list[int]:
    """Return the ranks that have a batch."""
    return [rank for rank in range(kv.num_workers) if batch < 1 + 2 * rank]


def last_of(kv: Any, of_rank: Callable[[int], int], batch: int) -> int:
    return sum(of_rank(rank) for rank in active(kv, batch))


@case()
def sums_are_those_of_the_ranks_that_push(create: Stores) -> None:
    kv = probed(create)
    with kv.uneven():
        for batch in batches(kv):
            kv.push([3, 5], [full(kv.rank + 1), full(10 * (batch + 1))])
            out = pulled(kv, 3)
            same(out, last_of(kv, lambda rank: rank + 1, batch))
    last = 2 * (kv.num_workers - 1)
    same(pulled(kv, 5), 10 * (last + 1))
    intact_after(kv)


def intact_after(kv: Any) -> None:
    """Check that the store continues as any other."""
    kv.push([3, 5], [full(2), full(4)])
    kv.wait()
    for key, value in (3, 2), (5, 4):
        kv.reset(key, full(value))
    intact(kv)


@case()
def averages_count_the_ranks_that_push(create: Stores) -> None:
    kv = create()
    for key, dtype in enumerate(["f4", "f8", "i4", "f2", "c8"]):
        kv.init(key, np.zeros(3, dtype), op="avg")
    with kv.uneven():
        for batch in batches(kv):
            ranks = active(kv, batch)
            for key, dtype in enumerate(["f4", "f8", "i4", "f2", "c8"]):
                kv.push(key, np.full(3, 6 * (kv.rank + 1)).astype(dtype))
            mean = sum(6 * (rank + 1) for rank in ranks) / len(ranks)
            for key in range(5):
                same(kv.pull(key), mean)
    kv.push(0, np.full(3, kv.rank + 1, "f4"))
    same(kv.pull(0), np.float32(total(kv) / kv.num_workers))


@case()
def products_are_those_of_the_ranks_that_push(create: Stores) -> None:
    kv = create()
    kv.init("product", np.zeros(3), op="prod")
    with kv.uneven():
        for batch in batches(kv):
            kv.push("product", np.full(3, -2.0))
            same(kv.pull("product"), (-2.0) ** len(active(kv, batch)))


@case()
def an_optimizer_updates_all_ranks(create: Stores) -> None:
    kv, model = probed(create), probed(create)
    for store in kv, model:
        store.set_optimizer(sgd())
    most = 1 + 2 * (kv.num_workers - 1)
    with kv.uneven():
        for batch in batches(kv):
            kv.pushpull(3, full(kv.rank + batch), out=full(0))
    for batch in range(most):
        mine = kv.rank in active(kv, batch)
        model.pushpull(3, full(kv.rank + batch if mine else 0), out=full(0))
    same(pulled(kv, 3), pulled(model, 3))
    same(pulled(kv, 5), 4)


@case()
def ranks_without_batches_use_the_active_ranks_hyperparameters(create: Stores) -> None:
    kv, mine = probed(create), sgd()
    kv.set_optimizer(mine)
    model, rates = probed(create), sgd()
    model.set_optimizer(rates)
    with kv.uneven():
        for batch in batches(kv):
            mine.learning_rate = 1 / (1 + batch)
            mine.lr_mult = {3: 1.0 + batch}
            kv.push([3, 5], [full(1), full(2)])
            kv.wait()
    last = 2 * (kv.num_workers - 1)
    assert (mine.learning_rate, mine.lr_mult) == (1 / (1 + last), {3: 1.0 + last})
    for batch in range(1 + last):
        rates.learning_rate, rates.lr_mult = 1 / (1 + batch), {3: 1.0 + batch}
        count = len(active(kv, batch)) if kv.rank == 0 else 0
        model.push([3, 5], [full(count), full(2 * count)])
        model.wait()
    for key in 3, 5:
        same(pulled(kv, key), pulled(model, key))


@case()
def groups_and_updaters_in_an_uneven_block(create: Stores) -> None:
    kv = probed(create)

    def update(key: Any, value: Any, stored: Any) -> None:
        stored += value

    kv.set_updater(update)
    expected = {3: 2.0, 5: 4.0}
    with kv.uneven():
        for _ in batches(kv):
            out = full(0)
            with kv.group():
                kv.push(3, full(kv.rank + 1))
                kv.push(5, full(1))
                kv.pull(3, out=out)
    for batch in range(1 + 2 * (kv.num_workers - 1)):
        expected[3] += last_of(kv, lambda rank: rank + 1, batch)
        expected[5] += len(active(kv, batch))
    same(pulled(kv, 3), expected[3])
    same(pulled(kv, 5), expected[5])


@case()
def a_rank_without_batches(create: Stores) -> None:
    kv = probed(create)
    with kv.uneven():
        if kv.rank == kv.num_workers - 1:
            for step in range(3):
                kv.push(3, full(step))
                kv.wait()
    same(pulled(kv, 3), 2)
    with kv.uneven():
        pass
    intact_after(kv)


@case()
def pushes_pending_at_the_end_of_the_block_count(create: Stores) -> None:
    kv = probed(create)
    with kv.uneven():
        kv.push(3, full(kv.rank + 1))
    same(kv.pull(3), total(kv))


@case()
def other_verbs_are_refused_in_an_uneven_block(create: Stores) -> None:
    kv = probed(create)
    calls: dict[str, Callable[[], Any]] = {
        "init": lambda: kv.init(9, full(0)),
        "reset": lambda: kv.reset(3, full(0)),
        "barrier": kv.barrier,
        "uneven": lambda: kv.uneven().__enter__(),
        "set_optimizer": lambda: kv.set_optimizer(sgd()),
        "close": kv.close,
    }
    with kv.uneven():
        for name, call in calls.items():
            with refused(kv, UsageError, f"{name} was called inside an uneven block"):
                call()
        kv.push(3, full(kv.rank + 1))
    same(kv.value(3) if kv.num_workers == 1 else kv.pull(3), total(kv))


def push_unevenly(kv: Any, key: int) -> None:
    with kv.uneven():
        kv.push(key, full(1))
        kv.wait()


@case(sizes=SEVERAL)
def active_ranks_push_the_same_keys(create: Stores) -> None:
    kv = probed(create)
    with pytest.raises(OrderMismatch) as caught:
        push_unevenly(kv, 5 if kv.rank == 1 else 3)
    others = [rank for rank in range(kv.num_workers) if rank != 1]
    names = ", ".join(map(str, others))
    said = f"rank {names}" if len(others) == 1 else f"ranks {names}"
    check_words(caught.value, f"key 3 was pushed by {said} and not by rank 1", "missing='zeros'")


def add(key: Any, value: Any, stored: Any) -> None:
    """An updater that adds."""
    stored += value


@case()
def a_filled_grad_view_outlives_the_others_flushes(create: Stores) -> None:
    kv = probed(create)
    with kv.uneven():
        for batch in batches(kv):
            kv.push([3, 5], [full(1), full(batch)])
            kv.wait()
        kv.grad_view(5)[...] = kv.rank + 1
    same(kv.grad_view(5), kv.rank + 1)
    kv.push(5, kv.grad_view(5))
    same(pulled(kv, 5), total(kv))


@case()
def pushes_left_over_at_the_end_of_a_block(create: Stores) -> None:
    # No rank reads: a push flushes the one before it, and the last push waits as its rank leaves.
    for rule in None, sgd(), add:
        kv, model = probed(create), probed(create)
        for store in kv, model:
            if rule is not None:
                (store.set_updater if rule is add else store.set_optimizer)(rule)
        with kv.uneven():
            for batch in batches(kv):
                kv.push([3, 5], [full(kv.rank + batch), full(10 * batch)])
        for batch in range(1 + 2 * (kv.num_workers - 1)):
            mine = kv.rank in active(kv, batch)
            model.push([3, 5], [full(kv.rank + batch), full(10 * batch)] if mine else [full(0)] * 2)
        for key in 3, 5:
            same(pulled(kv, key), pulled(model, key))


@case()
def pushes_left_over_are_read_by_ranks_that_stay(create: Stores) -> None:
    # Each batch pushes another key, so a rank leaves with keys that are not those of the flush.
    kv = create()
    kv.init([0, 1, 2], [full(0)] * 3, op="avg")
    kv.set_updater(add)
    expected = {0: 0.0, 1: 0.0, 2: 0.0}
    with kv.uneven():
        for batch in batches(kv):
            kv.push(batch % 3, full(12 * (kv.rank + 1)))
            if batch % 4 == 3:
                kv.pull(0, out=full(0))
    for batch in range(1 + 2 * (kv.num_workers - 1)):
        ranks = active(kv, batch)
        expected[batch % 3] += sum(12 * (rank + 1) for rank in ranks) / len(ranks)
    for key, value in expected.items():
        same(pulled(kv, key), value)


@case()
def ranks_that_leave_follow_ranks_that_stay(create: Stores) -> None:
    kv, mine = probed(create), sgd()
    kv.set_optimizer(mine)
    with kv.uneven():
        for batch in range(2 if kv.rank else 1):
            mine.learning_rate = 1 / (1 + batch)
            kv.push(3 if batch else 5, full(1))
        if kv.rank:
            kv.wait()
    assert mine.learning_rate == (0.5 if kv.num_workers > 1 else 1)


def push_and_leave(kv: Any) -> None:
    """Let rank 0 leave after one push; of the others rank 1 alone makes a second."""
    with kv.uneven():
        kv.push(3, full(1))
        if kv.rank == 1:
            kv.push(5, full(1))
        if kv.rank:
            kv.wait()


@case(sizes={3, 4})
def only_ranks_that_leave_may_have_pushed_less(create: Stores) -> None:
    kv = probed(create)
    with pytest.raises(OrderMismatch) as caught:
        push_and_leave(kv)
    others = "rank 2" if kv.num_workers == 3 else "ranks 2, 3"
    check_words(caught.value, f"key 5 was pushed by rank 1 and not by {others}; push it")
