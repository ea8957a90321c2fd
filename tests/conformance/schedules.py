"""Schedules of the learning rate: the rate of an update is that of MXNet, on every store."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import pytest

import ncclkv.optimizer as optimizer
from ncclkv.errors import SpecMismatch, UsageError
from tests.conformance.checkpoints import new_store
from tests.conformance.checkpoints_refused import failing
from tests.conformance.expect import full, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores

HALVING = optimizer.FactorScheduler(step=2, factor=0.5, base_lr=0.5)
CONFIGURED = optimizer.MultiFactorScheduler(step=[1, 3], factor=0.5, base_lr=0.7, warmup_steps=2)

# MXNet 1.9.1: weights of two keys and the learning rate after each step of SGD with momentum 0.5
# and HALVING.  Every gradient is 1; the second key is pushed in every second step.
MXNET = [
    (0.5, 1.0, 0.5),
    (-0.25, 0.5, 0.5),
    (-0.875, 0.5, 0.25),
    (-1.4375, 0.0, 0.25),
    (-1.84375, 0.0, 0.125),
    (-2.171875, -0.375, 0.125),
    (-2.3984375, -0.375, 0.0625),
    (-2.57421875, -0.625, 0.0625),
]


def halving(**arguments: Any) -> optimizer.SGD:
    """Return an optimizer whose rate halves every two updates."""
    return optimizer.SGD(lr_scheduler=HALVING, **arguments)


@case()
def the_largest_number_of_updates_sets_the_rate(create: Stores) -> None:
    for nbytes in (0, 1 << 20):
        kv, sgd = create(bucket_bytes=nbytes), halving(momentum=0.5)
        kv.init([0, 1], [full(1), full(1)], op="avg")
        kv.set_optimizer(sgd)
        for number, (first, second, rate) in enumerate(MXNET):
            kv.push(0, full(1))
            if number % 2:
                kv.push(1, full(1))
            if number % 3 == 0:  # else pushes wait
                same(kv.pull(0), first)
                same(kv.pull(1), second)
            assert (sgd.num_update, sgd.learning_rate) == (number + 1, rate)
        same(kv.pull(0), MXNET[-1][0])
        same(kv.pull(1), MXNET[-1][1])


@case()
def keys_of_one_push_have_one_rate(create: Stores) -> None:
    for nbytes in (0, 1 << 20):
        kv = create(bucket_bytes=nbytes)
        kv.init([0, 1], [full(0), full(0)], op="avg")
        kv.set_optimizer(halving())
        for _ in range(2):
            kv.push(1, full(1))
        kv.push([0, 1], [full(1), full(1)])  # update 3 of key 1
        with kv.group():
            kv.push(0, full(1))
            kv.push(1, full(1))
        same(kv.pull(0), -0.25 - 0.25)
        same(kv.pull(1), -0.5 - 0.5 - 0.25 - 0.25)


@case()
def an_overlap_block_is_one_update_of_its_keys(create: Stores) -> None:
    kv, sgd = create(), halving()
    kv.init([0, 1], [full(0), full(0)], op="avg")
    kv.set_optimizer(sgd)
    for _ in range(2):
        kv.push(1, full(1))  # the second push waits
    for _ in range(2):
        with kv.overlap():
            kv.push(1, full(1))
            kv.push(0, full(1))
    assert sgd.num_update == 4
    same(kv.pull(0), -0.25 - 0.25)
    same(kv.pull(1), -0.5 - 0.5 - 0.25 - 0.25)


@case()
def any_function_is_a_schedule(create: Stores) -> None:
    def rate(num_update: int) -> float:
        return 1 / num_update if num_update != 3 else float("nan")

    kv, sgd = probed(create), optimizer.SGD(lr_scheduler=rate)
    kv.set_optimizer(sgd)
    for _ in range(2):
        kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), 2 - 1.5 * total(kv))
    with refused(kv, UsageError, "lr_scheduler(num_update=3) is nan"):
        kv.push(3, full(1))
    assert sgd.num_update == 2
    sgd.lr_scheduler = None
    sgd.learning_rate = 0.5
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), 2 - 2 * total(kv))


@case()
def a_changed_schedule_takes_effect_at_the_next_push(create: Stores) -> None:
    kv, sgd = create(), optimizer.SGD(learning_rate=2.0)
    kv.init(["a", "b"], [full(0), full(0)])
    kv.set_optimizer(sgd)
    kv.push("a", full(kv.rank + 1))
    kv.push("b", full(kv.rank + 1))
    kv.push("a", full(kv.rank + 1))
    sgd.lr_scheduler = HALVING
    kv.push("b", full(kv.rank + 1))  # update 2, as of key a
    kv.push("a", full(kv.rank + 1))  # update 3
    assert sgd.learning_rate == 0.25
    same(kv.pull("a"), -4.25 * total(kv))
    same(kv.pull("b"), -2.5 * total(kv))
    with pytest.raises(UsageError, match="learning_rate cannot be set to 1.0: it is that of the"):
        sgd.set_learning_rate(1.0)


@case()
def updates_may_count_as_made(create: Stores) -> None:
    kv, sgd = probed(create), halving(begin_num_update=5)
    kv.set_optimizer(sgd)
    kv.push(3, full(kv.rank + 1))
    assert (sgd.num_update, sgd.learning_rate) == (6, 0.125)
    same(pulled(kv, 3), 2 - 0.125 * total(kv))


@case()
def a_reset_key_counts_from_the_beginning(create: Stores) -> None:
    kv, sgd = probed(create), halving()
    kv.set_optimizer(sgd)
    for _ in range(3):
        kv.push(3, full(1))
    kv.push(5, full(1))
    kv.reset(3, full(2))
    assert sgd.num_update == 1
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), 2 - 0.5 * total(kv))


@case()
def ranks_may_push_other_keys(create: Stores) -> None:
    kv, sgd = probed(create, missing="zeros"), halving()
    kv.set_optimizer(sgd)
    last = kv.num_workers - 1
    for _ in range(3):
        if kv.rank == last:
            kv.push(3, full(1))
        kv.wait()
    if kv.rank == 0:
        kv.push(5, full(1))
    if kv.rank == last:
        kv.push(3, full(1))
    kv.wait()
    assert (sgd.num_update, sgd.learning_rate) == (4, 0.25)
    same(kv.pull(3), 2 - 0.5 - 0.5 - 0.25 - 0.25)
    same(kv.pull(5), 4 - 0.25)


@case()
def ranks_may_push_at_different_times(create: Stores) -> None:
    kv, sgd = probed(create), halving()
    kv.set_optimizer(sgd)
    expected = 2.0
    with kv.uneven():
        for _ in range(1 + 2 * kv.rank):
            kv.push(3, full(1))
            kv.wait()
    for number in range(1, 2 * kv.num_workers):
        active = sum(number <= 1 + 2 * rank for rank in range(kv.num_workers))
        expected -= HALVING(number) * active
    same(kv.pull(3), expected)
    kv.push(3, full(kv.rank + 1))
    same(kv.pull(3), expected - HALVING(2 * kv.num_workers) * total(kv))


@case()
def ranks_agree_on_the_schedule(create: Stores) -> None:
    kv = probed(create)
    step = 2 + (kv.rank == kv.num_workers - 1)
    if kv.num_workers == 1:
        return
    sgd = optimizer.SGD(lr_scheduler=optimizer.FactorScheduler(step=step))
    with refused(kv, SpecMismatch, "set_optimizer", "'step': 2", "'step': 3"):
        kv.set_optimizer(sgd)


@case(needs="safetensors")
def a_loaded_run_continues_its_schedule(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(["a", "b"], [full(1), full(1)])
        kv.set_optimizer(optimizer.SGD(momentum=0.5, lr_scheduler=CONFIGURED))
        for number in range(3):
            kv.push("a", full(kv.rank + number))
        kv.push("b", full(1))
        kv.save(directory)
        kv.push(["a", "b"], [full(1), full(2)])
        wanted = kv.pull(["a", "b"])
        for given in (None, optimizer.SGD(momentum=0.5), halving(momentum=0.5)):
            with new_store(create) as other:
                if given is not None:
                    other.set_optimizer(given)
                other.load(directory)
                if given is not None:
                    assert (given.num_update, given.lr_scheduler) == (3, CONFIGURED)
                    assert given.learning_rate == CONFIGURED(3)
                other.push(["a", "b"], [full(1), full(2)])
                for mine, its in zip(other.pull(["a", "b"]), wanted, strict=True):
                    same(mine, its)


def rate_of_the_program(num_update: int) -> float:
    """Return a rate that no checkpoint can describe."""
    return 1 / num_update


@case(needs="safetensors")
def a_function_is_left_to_the_program(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = probed(create)
        kv.set_optimizer(optimizer.SGD(lr_scheduler=rate_of_the_program))
        kv.push(3, full(kv.rank + 1))
        kv.save(directory)
        with new_store(create) as other:
            with failing(other, "load", "rate_of_the_program", "first call set_optimizer"):
                other.load(directory)
            other.init([3, 5], [full(0), full(0)])
            sgd = optimizer.SGD(lr_scheduler=rate_of_the_program)
            other.set_optimizer(sgd)
            other.load(directory)
            assert sgd.num_update == 1
            other.push(3, full(kv.rank + 1))
            same(pulled(other, 3), 2 - 1.5 * total(kv))
