"""Ranks that push different keys, have different numbers of batches, or push NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import NonFinite, OrderMismatch, UsageError
from tests.cases.expect import full, intact, probed, pulled, refused, same, says, total
from tests.cases.registry import SEVERAL, case
from tests.cases.stores import Stores

NAN, INF = float("nan"), float("inf")


def sgd(rate: float = 0.5) -> Any:
    return ncclkv.optimizer.SGD(learning_rate=rate, momentum=0.5, wd=0.25)


def lenient(create: Stores, **options: Any) -> Any:
    """A store of keys 3, 5 and 7, which hold 2, 4 and 6."""
    kv = probed(create, missing="zeros", **options)
    kv.init(7, full(6))
    return kv


def is_even(kv: Any) -> bool:
    return bool(kv.rank % 2 == 0)


def of_even(kv: Any) -> int:
    """The sum of rank + 1 over the even ranks."""
    return sum(rank + 1 for rank in range(0, kv.num_workers, 2))


@case()
def keys_of_some_ranks_are_zeros_on_the_others(create: Stores) -> None:
    kv = lenient(create)
    for step in range(1, 4):
        kv.push(3, full(step * (kv.rank + 1)))
        if is_even(kv):
            kv.push(5, full(10 * step * (kv.rank + 1)))
        same(pulled(kv, 3), step * total(kv))
        same(pulled(kv, 5), 10 * step * of_even(kv))
        same(pulled(kv, 7), 6)


@case()
def lists_and_groups_of_different_keys(create: Stores) -> None:
    kv = lenient(create)
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
def an_optimizer_leaves_what_no_rank_pushed(create: Stores) -> None:
    kv, model = lenient(create), probed(create)
    for store in kv, model:
        store.set_optimizer(sgd())
    for step in range(3):
        for store in kv, model:
            # The model's ranks push zeros themselves.
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
def an_updater_is_called_for_what_some_rank_pushed(create: Stores) -> None:
    kv = lenient(create)
    seen: list[Any] = []

    def update(key: Any, value: Any, stored: Any) -> None:
        seen.append(key)
        stored += value

    kv.set_updater(update)
    for _ in range(2):
        if is_even(kv):
            kv.push(5, full(kv.rank + 1))
        kv.wait()
    assert seen == ([5, 5] if create.updates_here(kv) else [])
    same(pulled(kv, 5), 4 + 2 * of_even(kv))


@case()
def what_no_rank_pushes_is_no_maximum(create: Stores) -> None:
    kv = create(missing="zeros")
    for number, (op, dtype) in enumerate([("max", "f4"), ("min", "i8"), ("max", "u1")]):
        kv.init(number, np.zeros(3, dtype), op=op)
        if is_even(kv):
            kv.push(number, np.full(3, 5 + kv.rank).astype(dtype) * (-1 if dtype == "f4" else 1))
        expected = {"f4": -5, "i8": 5, "u1": 5 + max(range(0, kv.num_workers, 2))}[dtype]
        same(kv.pull(number), expected)


@case()
def an_average_counts_all_ranks(create: Stores) -> None:
    kv = create(missing="zeros")
    kv.init("mean", np.zeros(2), op="avg")
    if is_even(kv):
        kv.push("mean", np.full(2, 12.0 * kv.num_workers))
    same(kv.pull("mean"), 12 * len(range(0, kv.num_workers, 2)))


@case()
def a_key_is_pushed_once_between_flushes(create: Stores) -> None:
    kv = lenient(create)
    kv.push(3, full(kv.rank + 1))
    with refused(kv, UsageError, "key 3", "missing='zeros'", "wait"):
        kv.push(3, full(1))
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 7), 6)


@case()
def ranks_that_push_nothing(create: Stores) -> None:
    kv = lenient(create)
    if kv.rank == 0:
        kv.push(3, full(8))
    same(pulled(kv, 3), 8)
    kv.wait()
    kv.barrier()
    same(pulled(kv, 5), 4)


# Different numbers of batches


def batches(kv: Any) -> range:
    """As many as this rank has."""
    return range(1 + 2 * kv.rank)


def active(kv: Any, batch: int) -> list[int]:
    """The ranks that have that batch."""
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
    """The store goes on as any other."""
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
def an_optimizer_goes_on_for_all(create: Stores) -> None:
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
def what_waits_at_the_end_of_the_block_counts(create: Stores) -> None:
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
    says(caught.value, f"key 3 was pushed by {said} and not by rank 1", "missing='zeros'")


# NaN and infinity


def unsound(kv: Any, value: float) -> Any:
    """A gradient with one number of that kind on the last rank."""
    gradient = full(kv.rank + 1)
    if kv.rank == kv.num_workers - 1:
        gradient[1, 2] = value
    return gradient


def waited_for(kv: Any) -> None:
    """On a host a flush tells of NaN; of a GPU's the host hears when it next waits."""
    kv.pull(3)
    kv.wait()


@case()
def nan_raises_on_every_rank(create: Stores) -> None:
    kv = probed(create, nonfinite="raise")
    last = kv.num_workers - 1
    for value in (NAN, INF, -INF):
        kv.push(3, full(1))
        kv.push(5, unsound(kv, value))
        with pytest.raises(NonFinite) as caught:
            waited_for(kv)
        says(caught.value, f"rank {kv.rank} of", f"key 5 on rank {last};", "NaN or infinity")
        same(kv.pull(3), 2)
        same(kv.pull(5), 4)
    assert kv.skipped == 3
    intact(kv)


@case()
def nan_skips_the_step_on_every_rank(create: Stores) -> None:
    kv, model = probed(create, nonfinite="skip_step"), probed(create)
    for store in kv, model:
        store.set_optimizer(sgd())
    outs = [full(0), full(0)]
    for step in range(6):
        bad = step % 3 == 1
        gradients = [full(step + 1), unsound(kv, INF if step == 1 else NAN) if bad else full(step)]
        if step % 2:
            kv.pushpull([3, 5], gradients, out=outs)
        else:
            with kv.group():
                for key, gradient in zip((3, 5), gradients, strict=True):
                    kv.push(key, gradient)
                kv.pull([3, 5], out=outs)
        if not bad:
            model.push([3, 5], gradients)
        same(outs[0], pulled(model, 3))
        same(outs[1], pulled(model, 5))
    kv.wait()
    assert kv.skipped == 2


@case()
def an_updater_never_sees_nan(create: Stores) -> None:
    kv = probed(create, nonfinite="skip_step")
    seen: list[Any] = []
    kv.set_updater(lambda key, value, stored: seen.append((key, float(np.sum(value)))))
    kv.push([3, 5], [full(1), unsound(kv, NAN)])
    kv.push(3, full(kv.rank + 1))
    assert seen == ([(3, 6.0 * total(kv))] if create.updates_here(kv) else [])
    assert kv.skipped == 1


@case()
def integers_and_large_numbers_are_sound(create: Stores) -> None:
    kv = create(nonfinite="raise")
    values = [np.full(4, 3e38, "f4"), np.full(4, 2**40), np.array([True, False, True, True])]
    kv.init(["a", "b", "c"], [np.zeros_like(value) for value in values])
    mine = values if kv.rank == 0 else [np.zeros_like(value) for value in values]
    kv.push(["a", "b", "c"], mine)
    for key, value in zip("abc", values, strict=True):
        same(kv.pull(key), value)


@case()
def by_default_nan_is_a_value(create: Stores) -> None:
    kv = probed(create)
    kv.push(3, unsound(kv, NAN))
    got = np.asarray(pulled(kv, 3))
    assert np.isnan(got[1, 2])
    assert np.isfinite(got).sum() == got.size - 1


@case()
def nan_on_a_rank_that_pushes_alone(create: Stores) -> None:
    kv = lenient(create, nonfinite="raise")
    if kv.rank == 0:
        kv.push(7, full(NAN))
    with pytest.raises(NonFinite, match="key 7 on rank 0;"):
        kv.pull(7)
    same(kv.pull(7), 6)
