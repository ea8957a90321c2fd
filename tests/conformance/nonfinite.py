"""Ranks that push NaN or infinity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import NonFinite
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import check_words, full, intact, probed, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

NAN, INF = float("nan"), float("inf")


def sgd(rate: float = 0.5) -> Any:
    return ncclkv.optimizer.SGD(learning_rate=rate, momentum=0.5, wd=0.25)


def unsound(kv: Any, value: float) -> Any:
    """Return a gradient with one such number on the last rank."""
    gradient = full(kv.rank + 1)
    if kv.rank == kv.num_workers - 1:
        gradient[1, 2] = value
    return gradient


def waited_for(kv: Any) -> None:
    """Expect the error of a flush: at once on hosts, at the next wait on a GPU."""
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
        check_words(caught.value, f"rank {kv.rank} of", f"key 5 on rank {last};", "NaN or infinity")
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
    assert seen == ([(3, 6.0 * total(kv))] if create.updates_here(kv, 3) else [])
    assert kv.skipped == 1


@case()
def integers_and_large_numbers_are_finite(create: Stores) -> None:
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
    kv = probed(create, missing="zeros", nonfinite="raise")
    kv.init(7, full(6))
    if kv.rank == 0:
        kv.push(7, full(NAN))
    with pytest.raises(NonFinite, match="key 7 on rank 0;"):
        kv.pull(7)
    same(kv.pull(7), 6)


@case()
def a_key_that_a_rank_has_not_pushed_is_finite(create: Stores) -> None:
    kv = create(nonfinite="raise")
    for op in ("max", "min"):
        kv.init(op, full(0), op=op)
    for value in (7, -7):
        with kv.overlap(missing="zeros"):
            if kv.rank == 0:
                kv.push(["max", "min"], [full(value), full(value)])
        same(kv.pull("max"), value)
        same(kv.pull("min"), value)
    with kv.overlap(missing="zeros"):
        if kv.rank == 0:
            kv.push("max", full(NAN))
            kv.push("min", full(3))
    with pytest.raises(NonFinite, match="key 'max' on rank 0;"):
        waited_for_both(kv)
    kv.push(["max", "min"], [full(1), full(1)])
    same(kv.pull("max"), 1)


def waited_for_both(kv: Any) -> None:
    """Expect the error of a flush of the keys "max" and "min"."""
    kv.pull(["max", "min"])
    kv.wait()


@case()
def a_skipped_step_is_no_update_of_the_schedule(create: Stores) -> None:
    if not current_buffers().capabilities.timed:
        return  # a device counts the updates that it skips
    kv = probed(create, nonfinite="skip_step")
    halving = ncclkv.optimizer.FactorScheduler(step=1, factor=0.5, base_lr=1.0)
    rule = ncclkv.optimizer.SGD(lr_scheduler=halving)
    kv.set_optimizer(rule)
    for gradient in (full(0), full(0), full(0), unsound(kv, NAN)):
        kv.push(3, gradient)
        kv.wait()
    assert (kv.skipped, rule.num_update) == (1, 3)
    kv.push(5, full(0))
    kv.wait()
    assert rule.num_update == 3
    assert rule.learning_rate == 0.25
