"""`set_optimizer`: SGD in numbers that are exact in binary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv.optimizer as optimizer
from ncclkv.errors import DTypeMismatch, UsageError
from tests.conformance.expect import full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.harness.context import context_of


@case()
def momentum_over_two_steps(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(0), full(8, (5,))])
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    for _ in range(2):
        kv.push(["a", "b"], [full(kv.rank + 1), full(2 * (kv.rank + 1), (5,))])
    # m: -T/2, then -T/4 - T/2; w: -T/2, then -5T/4, for T the sum over ranks.
    same(pulled(kv, "a"), -1.25 * total(kv))
    same(pulled(kv, "b", full(0, (5,))), 8 - 2.5 * total(kv))


@case()
def rescaling_clipping_and_decay(create: Stores) -> None:
    kv = create()
    kv.init("a", full(4))
    sgd = optimizer.SGD(learning_rate=0.5, wd=0.25, rescale_grad=0.5, clip_gradient=1.0)
    kv.set_optimizer(sgd)
    kv.push("a", full(4))
    # clip(0.5 * 4n, 1) + 0.25 * 4 = 2; 4 - 0.5 * 2 = 3.
    same(pulled(kv, "a"), 3)
    kv.push("a", full(-4))
    # -1 + 0.75 = -0.25; 3 + 0.125.
    same(pulled(kv, "a"), 3.125)


@case()
def reset_drops_the_momentum_of_that_key(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(0), full(0)])
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    kv.push(["a", "b"], [full(1), full(1)])
    kv.reset("a", full(7))
    kv.push(["a", "b"], [full(1), full(1)])
    same(pulled(kv, "a"), 7 - 0.5 * kv.num_workers)
    same(pulled(kv, "b"), -1.25 * kv.num_workers)


@case()
def a_reset_of_the_value_alone_keeps_momentum_and_counts(create: Stores) -> None:
    kv = create()
    kv.init("a", full(0))
    halving = optimizer.FactorScheduler(step=1, factor=0.5, base_lr=0.5)
    sgd = optimizer.SGD(momentum=0.5, lr_scheduler=halving)
    kv.set_optimizer(sgd)
    kv.push("a", full(1))
    kv.reset("a", full(7), reset_states=False)
    kv.push("a", full(1))
    # m: -1/2, then -1/4 - 1/4.
    same(pulled(kv, "a"), 7 - 0.5 * kv.num_workers)
    assert sgd.num_update == 2


@case()
def a_reset_of_the_value_alone_replaces_master_copies(create: Stores) -> None:
    kv = create()
    kv.init("a", full(0).astype(np.float16))
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5, multi_precision=True))
    kv.push("a", full(1).astype(np.float16))
    kv.reset("a", full(7).astype(np.float16), reset_states=False)
    kv.push("a", full(1).astype(np.float16))
    same(pulled(kv, "a", full(0).astype(np.float16)), 7 - 0.75 * kv.num_workers)


@case()
def what_is_no_optimizer_is_refused(create: Stores) -> None:
    kv = probed(create)
    for wrong, words in (("adam", "a str"), (optimizer.Adam, "the class Adam")):
        with refused(kv, UsageError, "set_optimizer", f"not {words};", "create("):
            kv.set_optimizer(wrong)
    intact(kv)


@case()
def the_same_optimizer_set_again_keeps_its_momentum(create: Stores) -> None:
    kv = create()
    kv.init("a", full(0))
    sgd = optimizer.SGD(learning_rate=0.5, momentum=0.5)
    rules = []
    for _ in range(2):
        kv.set_optimizer(sgd)
        rules.append(context_of(kv).engine.rule)
        kv.push("a", full(1))
    same(pulled(kv, "a"), -1.25 * kv.num_workers)
    assert rules[0] is rules[1], "captured steps and cached calls would be made anew"


@case()
def another_optimizer_of_the_class_keeps_the_momentum(create: Stores) -> None:
    for options, expected in (({}, -1.0), ({"reset_states": True}, -0.75)):
        kv = create()
        kv.init("a", full(0))
        kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
        kv.push("a", full(1))  # waits, and is updated by the first optimizer
        kv.set_optimizer(optimizer.SGD(learning_rate=0.25, momentum=0.5), **options)
        kv.push("a", full(1))
        # m: -1/2, then -1/4 - 1/4 or, if it is reset, -1/4.
        same(pulled(kv, "a"), expected * kv.num_workers)


@case()
def a_reset_of_the_states_also_resets_counts(create: Stores) -> None:
    halving = optimizer.FactorScheduler(step=1, factor=0.5, base_lr=0.5)
    sgd = optimizer.SGD(momentum=0.5, lr_scheduler=halving)
    kv = create()
    kv.init("a", full(0))
    kv.set_optimizer(sgd)
    kv.push("a", full(1))
    kv.set_optimizer(sgd)
    kv.push("a", full(1))  # m = -1/4 - 1/4
    assert sgd.num_update == 2
    kv.set_optimizer(sgd, reset_states=True)
    kv.push("a", full(1))
    assert sgd.num_update == 1
    same(pulled(kv, "a"), -1.5 * kv.num_workers)


@case()
def an_optimizer_with_other_states_starts_them_anew(create: Stores) -> None:
    kv = create()
    kv.init("a", full(0))
    for momentum in (0.5, 0.0, 0.5):
        kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=momentum))
        kv.push("a", full(1))
    same(pulled(kv, "a"), -1.5 * kv.num_workers)
    with refused(kv, UsageError, "reset_states=1 is not a bool"):
        kv.set_optimizer(optimizer.SGD(momentum=0.5), reset_states=1)


@case()
def an_optimizer_after_a_function_updates_all_of_each_key(create: Stores) -> None:
    # Both keys lie in one bucket, long enough for the ranks of a node to share its weights.
    shape = (32 * 1024,)
    kv = create()
    kv.init(["a", "b"], [full(0, shape), full(0, shape)])
    kv.push("b", full(1, shape))
    same(pulled(kv, "b", full(0, shape)), kv.num_workers)
    kv.set_updater(lambda key, total, stored: None)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5))
    kv.push("b", full(1, shape))
    same(pulled(kv, "b", full(0, shape)), 0.5 * kv.num_workers)


@case()
def only_pushed_keys_take_a_step(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b", "c"], [full(0), full(0), full(0)])
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    kv.push(["a", "b", "c"], [full(1), full(1), full(1)])
    kv.push("b", full(0))
    kv.push("b", full(0))
    # The momentum of b alone continues: -1/2, -1/4, -1/8.
    same(pulled(kv, "b"), -0.875 * kv.num_workers)
    same(pulled(kv, "a"), -0.5 * kv.num_workers)
    same(pulled(kv, "c"), -0.5 * kv.num_workers)


@case()
def several_values_and_ops(create: Stores) -> None:
    kv = create()
    kv.init("sum", full(0))
    kv.init("avg", full(0), op="avg")
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    kv.push(["sum", "avg"], [[full(1), full(2)], [full(1), full(2)]])
    same(pulled(kv, "sum"), -3 * kv.num_workers)
    same(pulled(kv, "avg"), -3)


@case()
def pushpull_in_place_gives_weights(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(8), full(16)])
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5))
    for step in range(1, 4):
        grads = [full(kv.rank + 1), full(2 * (kv.rank + 1))]
        kv.pushpull(["a", "b"], grads)
        same(grads[0], 8 - 0.5 * step * total(kv))
        same(grads[1], 16 - step * total(kv))


@case()
def the_store_against_an_update_by_every_worker(create: Stores) -> None:
    on_store, by_hand = create(), create()
    weight, momentum = full(3), full(0)
    on_store.init("w", weight)
    by_hand.init("g", weight)
    on_store.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    for step in range(3):
        grad = full((step + 1) * (on_store.rank + 1))
        on_store.push("w", grad)
        by_hand.pushpull("g", grad)
        momentum[:] = 0.5 * momentum - 0.5 * grad
        weight += momentum
        same(pulled(on_store, "w"), weight)


@case()
def half_precision_steps(create: Stores) -> None:
    kv = create()
    kv.init("h", full(1, dtype=np.float16))
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    for _ in range(2):
        kv.push("h", full(kv.rank + 1, dtype=np.float16))
    same(pulled(kv, "h", full(0, dtype=np.float16)), 1 - 1.25 * total(kv))


@case()
def layouts_make_no_difference(create: Stores) -> None:
    for nbytes in (0, 256, 1 << 20):
        kv = create(bucket_bytes=nbytes)
        keys = list(range(9))
        kv.init(keys, [full(key, (key + 1, 30)) for key in keys])
        kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
        for _ in range(2):
            kv.push(keys, [full(kv.rank + 1, (key + 1, 30)) for key in keys])
        for key in keys:
            same(kv.pull(key), key - 1.25 * total(kv))


@case()
def objects_that_are_no_optimizers(create: Stores) -> None:
    kv = probed(create)
    wrong: list[Any] = [None, "sgd", optimizer.SGD, 3, lambda key, grad, stored: None]
    for thing in wrong:
        with refused(kv, UsageError, "set_optimizer", "ncclkv.optimizer"):
            kv.set_optimizer(thing)
    intact(kv)


@case()
def integer_keys_have_no_gradient_step(create: Stores) -> None:
    kv = create()
    kv.init("count", full(3, dtype=np.int32))
    kv.init("w", full(3))
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    with refused(kv, DTypeMismatch, "'count'", "int32", "set_updater"):
        kv.push("count", full(1, dtype=np.int32))
    with refused(kv, DTypeMismatch, "'count'", "int32"):
        kv.push(["w", "count"], [full(1), full(1, dtype=np.int32)])
    same(kv.pull("count"), 3)
    kv.push("w", full(1))
    same(pulled(kv, "w"), 3 - kv.num_workers)


class RealDescent(optimizer.SGD):
    """An optimizer that updates no complex weights."""

    complex_weights = False


@case()
def complex_keys_are_refused_before_a_push(create: Stores) -> None:
    sgd = RealDescent(learning_rate=1.0)
    kv = create()
    kv.init(["c", "w"], [full(3, dtype=np.complex64), full(3)])
    with refused(kv, DTypeMismatch, "'c'", "complex64", "RealDescent", "set_updater"):
        kv.set_optimizer(sgd)
    kv.push("c", full(2j, dtype=np.complex64))
    same(kv.pull("c"), 2j * kv.num_workers)
    kv = create()
    kv.set_optimizer(sgd)
    for call in (kv.init, lambda key, value: kv.broadcast(key, value, value)):
        with refused(kv, DTypeMismatch, "'c'", "complex128", "RealDescent", "set_updater"):
            call(["w", "c"], [full(3), full(3, dtype=np.complex128)])
    assert list(kv.keys()) == []
    kv.init("w", full(3))
    kv.push("w", full(1))
    same(kv.pull("w"), 3 - kv.num_workers)


@case()
def complex_weights_are_pairs_of_real_numbers(create: Stores) -> None:
    for dtype in (np.complex64, np.complex128):
        for size in (3, 9000):  # the large bucket's weights may be shared
            kv, pairs = create(), create()
            value, gradient = np.arange(size) - 2j, (1 + 2j) * np.arange(size)
            value, gradient = value.astype(dtype), gradient.astype(dtype)
            for store, view in ((kv, lambda x: x), (pairs, lambda x: x.view(x.real.dtype))):
                store.init(["a", "b", "c"], [view(value), view(value), view(value)])
                sgd = optimizer.SGD(learning_rate=0.5, momentum=0.5, wd=0.25, clip_gradient=7.0)
                sgd.lr_mult["b"] = 0.5
                store.set_optimizer(sgd)
                for number in range(3):
                    store.push("b", view(gradient))
                    store.push(["a", "c"], [view(gradient * number), view(gradient)])
            for key in ("a", "b", "c"):
                same(kv.pull(key).view(value.real.dtype), pairs.pull(key))


@case()
def wrong_numbers_never_reach_the_store(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(4), full(8)])
    sgd = optimizer.SGD(learning_rate=0.5)
    kv.set_optimizer(sgd)
    wrong: Any = "x"
    for name in ("learning_rate", "wd", "rescale_grad", "clip_gradient", "lr_mult"):
        with pytest.raises(UsageError, match=name):
            setattr(sgd, name, wrong)
    sgd.lr_mult["a"] = wrong
    for push in (kv.push, kv.pushpull):
        with refused(kv, UsageError, "lr_mult of key 'a' is 'x'"):
            push(["a", "b"], [full(1), full(1)])
    with refused(kv, UsageError, "lr_mult of key 'a' is 'x'"), kv.group():
        kv.push("b", full(1))
    same(kv.pull("a"), 4)
    same(kv.pull("b"), 8)
    sgd.lr_mult["a"] = 2
    kv.push(["a", "b"], [full(kv.rank + 1), full(kv.rank + 1)])
    same(kv.pull("a"), 4 - total(kv))
    same(kv.pull("b"), 8 - 0.5 * total(kv))


@case()
def factors_by_the_names_of_keys(create: Stores) -> None:
    kv = create()
    kv.init([0, 1, 2], [full(4), full(4), full(4)])
    names = {0: "a_weight", 1: "a_bias", 2: "b_weight"}
    sgd = optimizer.SGD(learning_rate=1.0, wd=0.25, param_idx2name=names)
    kv.set_optimizer(sgd)
    kv.push([0, 1, 2], [full(1), full(1), full(1)])
    for key, value in enumerate([4 - 1, 4, 4 - 1]):
        same(kv.pull(key), value - kv.num_workers)
    sgd.lr_mult["a_bias"] = 0.0
    sgd.idx2name[2] = "a_bias"
    kv.push([1, 2], [full(1), full(1)])
    same(kv.pull(1), 4 - kv.num_workers)
    same(kv.pull(2), 3 - kv.num_workers)


@case()
def wrong_factors_are_not_set(create: Stores) -> None:
    kv = probed(create)
    sgd = optimizer.SGD()
    sgd.wd_mult[3] = float("inf")
    with refused(kv, UsageError, "wd_mult of key 3 is inf"):
        kv.set_optimizer(sgd)
    intact(kv)
