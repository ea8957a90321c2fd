"""Ranks that push different keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ncclkv
from ncclkv.errors import UsageError
from tests.conformance.expect import full, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


def sgd(rate: float = 0.5) -> Any:
    return ncclkv.optimizer.SGD(learning_rate=rate, momentum=0.5, wd=0.25)


def with_zeros(create: Stores, **options: Any) -> Any:
    """Return a store of keys 3, 5 and 7, which hold 2, 4 and 6."""
    kv = probed(create, missing="zeros", **options)
    kv.init(7, full(6))
    return kv


def is_even(kv: Any) -> bool:
    return bool(kv.rank % 2 == 0)


def of_even(kv: Any) -> int:
    """Return the sum of rank + 1 over the even ranks."""
    return sum(rank + 1 for rank in range(0, kv.num_workers, 2))


@case()
def keys_of_some_ranks_are_zeros_on_the_others(create: Stores) -> None:
    kv = with_zeros(create)
    for step in range(1, 4):
        kv.push(3, full(step * (kv.rank + 1)))
        if is_even(kv):
            kv.push(5, full(10 * step * (kv.rank + 1)))
        same(pulled(kv, 3), step * total(kv))
        same(pulled(kv, 5), 10 * step * of_even(kv))
        same(pulled(kv, 7), 6)


@case()
def lists_and_groups_of_different_keys(create: Stores) -> None:
    kv = with_zeros(create)
    keys = [3, 5] if is_even(kv) else [3]
    kv.push(keys, [full(kv.rank + 1) for _ in keys])
    outs = [full(0), full(0)]
    with kv.group():
        for key in keys:
            kv.push(key, full(2 * (kv.rank + 1)))
        kv.pull([3, 5], out=outs)
    # A group begins with a flush of what was pushed before.
    same(outs[0], 2 * total(kv))
    same(outs[1], 2 * of_even(kv))


@case()
def an_optimizer_skips_keys_that_no_rank_pushed(create: Stores) -> None:
    kv, model = with_zeros(create), probed(create)
    for store in kv, model:
        store.set_optimizer(sgd())
    for step in range(3):
        for store in kv, model:
            # The model's ranks push the zeros themselves.
            store.push(3, full(kv.rank + step))
            if is_even(kv):
                store.push(5, full(step))
            elif store is model:
                store.push(5, full(0))
            store.wait()
    same(pulled(kv, 3), pulled(model, 3))
    same(pulled(kv, 5), pulled(model, 5))
    same(pulled(kv, 7), 6)


@case()
def an_updater_is_called_for_keys_that_any_rank_pushed(create: Stores) -> None:
    kv = with_zeros(create)
    seen: list[Any] = []

    def update(key: Any, value: Any, stored: Any) -> None:
        seen.append(key)
        stored += value

    kv.set_updater(update)
    for _ in range(2):
        if is_even(kv):
            kv.push(5, full(kv.rank + 1))
        kv.wait()
    assert seen == ([5, 5] if create.updates_here(kv, 5) else [])
    same(pulled(kv, 5), 4 + 2 * of_even(kv))


@case()
def zeros_of_missing_pushes_are_no_maximum_and_no_factor(create: Stores) -> None:
    kv = create(missing="zeros")
    for number, (op, dtype) in enumerate([("max", "f4"), ("min", "i8"), ("max", "u1")]):
        kv.init(number, np.zeros(3, dtype), op=op)
        if is_even(kv):
            kv.push(number, np.full(3, 5 + kv.rank).astype(dtype) * (-1 if dtype == "f4" else 1))
        expected = {"f4": -5, "i8": 5, "u1": 5 + max(range(0, kv.num_workers, 2))}[dtype]
        same(kv.pull(number), expected)
    for number, dtype in enumerate(("f4", "i8", "u1", "?"), start=10):
        kv.init(number, np.zeros(3, dtype), op="prod")
        if is_even(kv):
            kv.push(number, np.full(3, 3).astype(dtype))
        same(kv.pull(number), 3 ** len(range(0, kv.num_workers, 2)))


@case()
def an_average_counts_all_ranks(create: Stores) -> None:
    kv = create(missing="zeros")
    kv.init("mean", np.zeros(2), op="avg")
    if is_even(kv):
        kv.push("mean", np.full(2, 12.0 * kv.num_workers))
    same(kv.pull("mean"), 12 * len(range(0, kv.num_workers, 2)))


@case()
def a_key_is_pushed_once_between_flushes(create: Stores) -> None:
    kv = with_zeros(create)
    kv.push(3, full(kv.rank + 1))
    with refused(kv, UsageError, "key 3", "missing='zeros'", "wait"):
        kv.push(3, full(1))
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 7), 6)


@case()
def ranks_that_push_nothing(create: Stores) -> None:
    kv = with_zeros(create)
    if kv.rank == 0:
        kv.push(3, full(8))
    same(pulled(kv, 3), 8)
    kv.wait()
    kv.barrier()
    same(pulled(kv, 5), 4)


@case()
def a_learning_rate_is_that_of_the_push_or_of_the_flush(create: Stores) -> None:
    # A push keeps the numbers of its time; if ranks need not push, the flush has the numbers.
    for options, rate in ({"nonfinite": "raise"}, 0.5), ({"missing": "zeros"}, 0.25):
        kv, mine = probed(create, **options), ncclkv.optimizer.SGD(learning_rate=0.5)
        kv.set_optimizer(mine)
        kv.push(3, full(kv.rank + 1))
        mine.learning_rate = 0.25
        same(pulled(kv, 3), 2 - rate * total(kv))


@case()
def a_filled_grad_view_outlives_flushes_without_it(create: Stores) -> None:
    # Even ranks push in each step; odd ranks accumulate three steps in place, and push the third.
    kv = with_zeros(create)
    gathered = 0
    gradient = kv.grad_view(5)
    for step in range(1, 4):
        gathered += step * (kv.rank + 1)
        gradient[...] = step * (kv.rank + 1) if is_even(kv) else gathered
        if is_even(kv) or step == 3:
            kv.push(5, gradient)
        odd = total(kv) - of_even(kv)
        same(pulled(kv, 5), step * of_even(kv) + (6 * odd if step == 3 else 0))
        if not is_even(kv) and step < 3:
            same(gradient, gathered)
    same(pulled(kv, 3), 2)


@case()
def a_filled_grad_view_outlives_flushes_of_every_rule_and_op(create: Stores) -> None:
    def add(key: Any, value: Any, stored: Any) -> None:
        stored += value

    for op, dtype in ("max", "i4"), ("min", "f4"), ("avg", "f8"):
        for rule in None, sgd(1.0), add:
            if rule is not None and dtype == "i4":
                continue  # an optimizer accepts floats alone
            kv = create(missing="zeros")
            kv.init("kept", np.zeros(3, dtype), op=op)
            if rule is not None:
                (kv.set_updater if rule is add else kv.set_optimizer)(rule)
            kv.grad_view("kept")[...] = 40 + kv.rank
            if kv.rank == 0:
                kv.push("kept", np.full(3, 4 * kv.num_workers).astype(dtype))
            kv.wait()
            if kv.rank:
                same(kv.grad_view("kept"), 40 + kv.rank)


@case()
def a_number_that_is_refused_on_one_rank_breaks_nothing(create: Stores) -> None:
    calls: dict[str, Callable[[Any], object]] = {
        "pull": lambda kv: kv.pull(5),
        "wait": lambda kv: kv.wait(),
        "barrier": lambda kv: kv.barrier(),
        "reset": lambda kv: kv.reset(7, full(1)),
        "group": lambda kv: kv.group().__enter__(),
    }
    kv, mine = with_zeros(create), sgd(1.0)
    kv.set_optimizer(mine)
    for number, call in enumerate(calls.values(), start=1):
        kv.push(3, full(kv.rank + 1))
        if kv.rank == kv.num_workers - 1:
            mine.lr_mult[3] = float("nan")
            with refused(kv, UsageError, "lr_mult", "nan"):
                call(kv)
            mine.lr_mult[3] = 1.0
        kv.push(5, full(number))
        same(pulled(kv, 7), 6)
        same(kv.value(7), 6)


@case()
def a_learning_rate_changed_between_pushes_makes_no_flush(create: Stores) -> None:
    kv, mine = with_zeros(create), ncclkv.optimizer.SGD(learning_rate=1.0)
    kv.set_optimizer(mine)
    if is_even(kv):
        kv.push(3, full(kv.rank + 1))
    mine.learning_rate = 0.5
    kv.push(5, full(kv.rank + 1))
    same(pulled(kv, 3), 2 - of_even(kv) / 2)
    same(pulled(kv, 5), 4 - total(kv) / 2)
