"""`pull`, `pushpull` and `broadcast`: the destinations of their results."""

from __future__ import annotations

import numpy as np

from tests.conformance.expect import SHAPE, full, probed, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@case()
def new_arrays_without_out(create: Stores) -> None:
    kv = probed(create)
    one = kv.pull(3)
    assert (one.shape, one.dtype) == (SHAPE, np.float32)
    same(one, 2)
    several = kv.pull([5, 3])
    assert isinstance(several, list)
    same(several[0], 4)
    same(several[1], 2)
    several[0][:] = 50
    one[:] = 50
    same(kv.pull(3), 2)
    same(kv.pull(5), 4)


@case()
def several_outs_for_a_key(create: Stores) -> None:
    kv = probed(create)
    outs = [full(0) for _ in range(5)]
    assert kv.pull(3, out=outs) is None
    for out in outs:
        same(out, 2)


@case()
def a_ragged_list_of_outs(create: Stores) -> None:
    kv = probed(create)
    single, several = full(0), [full(0), full(0), full(0)]
    kv.pull([5, 3], out=[single, several])
    same(single, 4)
    for out in several:
        same(out, 2)


@case()
def a_key_repeated_in_a_pull(create: Stores) -> None:
    kv = probed(create)
    first, second, third = full(0), full(0), full(0)
    kv.pull([3, 5, 3], out=[first, second, third])
    same(first, 2)
    same(second, 4)
    same(third, 2)


@case()
def ignore_sparse_means_nothing_for_dense_keys(create: Stores) -> None:
    kv = probed(create)
    for flag in (True, False):
        out = full(0)
        kv.pull(3, out, 0, flag)
        same(out, 2)


@case()
def pushpull_into_more_outs_than_values(create: Stores) -> None:
    kv = probed(create)
    outs = [full(0) for _ in range(3)]
    kv.pushpull(3, [full(kv.rank + 1), full(1)], out=outs)
    for out in outs:
        same(out, total(kv) + kv.num_workers)
    single = full(0)
    kv.pushpull(3, [full(1), full(2)], out=single)
    same(single, 3 * kv.num_workers)


@case()
def pushpull_pushes_all_before_it_pulls_any(create: Stores) -> None:
    kv = probed(create)
    shared = full(kv.rank + 1)
    kv.pushpull([3, 5], [shared, shared])
    same(shared, total(kv))
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 5), total(kv))


@case()
def pushpull_of_a_repeated_key(create: Stores) -> None:
    kv = probed(create)
    first, second = full(kv.rank + 1), full(10)
    kv.pushpull([3, 3], [first, second])
    for out in (first, second):
        same(out, total(kv) + 10 * kv.num_workers)


@case()
def pushpull_with_an_updater_gives_the_weight(create: Stores) -> None:
    kv = probed(create)
    kv.set_updater(lambda key, grad, stored: np.subtract(stored, grad, out=stored))
    for i in range(1, 4):
        grad = full(kv.rank + 1)
        kv.pushpull(3, grad)
        same(grad, 2 - i * total(kv))


@case()
def broadcast_gives_the_value_of_rank_zero(create: Stores) -> None:
    kv = create()
    outs = [full(0), full(0)]
    kv.broadcast(3, full(7 + kv.rank), outs)
    for out in outs:
        same(out, 7)
    kv.broadcast([3, 4], [full(9 + kv.rank), full(1 - kv.rank)], outs)
    same(outs[0], 9)
    same(outs[1], 1)
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), total(kv))


@case()
def broadcast_into_the_value_itself(create: Stores) -> None:
    kv = create()
    weight = full(7 + kv.rank)
    kv.broadcast("w", weight, weight)
    same(weight, 7)


@case()
def init_takes_the_value_of_rank_zero(create: Stores) -> None:
    kv = create()
    kv.init(["a", "b"], [full(7 + kv.rank), full(8 - kv.rank)])
    same(pulled(kv, "a"), 7)
    same(pulled(kv, "b"), 8)
    kv.reset("a", full(20 + kv.rank))
    same(pulled(kv, "a"), 20)
    kv.reset(["a", "b"], [full(30 + kv.rank), full(40 + kv.rank)])
    same(pulled(kv, "a"), 30)
    same(pulled(kv, "b"), 40)


@case()
def every_call_returns_none(create: Stores) -> None:
    kv = create()
    results = [
        kv.init(3, full(0)),
        kv.push(3, full(1)),
        kv.pull(3, out=full(0)),
        kv.pushpull(3, full(1)),
        kv.broadcast(4, full(1), full(0)),
        kv.reset(3, full(0)),
        kv.wait(),
        kv.barrier(),
        kv.set_updater(lambda key, grad, stored: None),
    ]
    assert results == [None] * len(results)


@case()
def one_out_for_keys_of_several_buckets_ends_with_the_last(create: Stores) -> None:
    kv = create()
    kv.init([1, 2, 3], [full(1), full(2, dtype=np.float64), full(3)])
    kv.push([1, 2, 3], [full(1), full(2, dtype=np.float64), full(3)])
    one, several = full(0), full(0)
    kv.pull([1, 2, 3], out=[one, several, several])
    same(one, kv.num_workers)
    same(several, 3 * kv.num_workers)
