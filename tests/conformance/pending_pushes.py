"""A push may wait in its bucket; no program can observe the delay."""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.expect import full, pulled, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


def two_keys(create: Stores, **options: Any) -> Any:
    """Return a store whose bucket has a second key: a push of the first does not fill it."""
    kv = create(**options)
    kv.init(["a", "b"], [full(2), full(4)])
    return kv


@case()
def the_array_may_be_reused_at_once(create: Stores) -> None:
    kv = two_keys(create)
    buffer = full(kv.rank + 1)
    kv.push("a", buffer)
    buffer[:] = 10 * (kv.rank + 1)
    kv.push("b", buffer)
    buffer[:] = -1
    same(pulled(kv, "a"), total(kv))
    same(pulled(kv, "b"), 10 * total(kv))


@case()
def a_second_push_of_a_key_replaces(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("a", full(1))
    kv.push("a", full(kv.rank + 1))
    same(pulled(kv, "a"), total(kv))
    same(pulled(kv, "b"), 4)


@case()
def a_partial_bucket_leaves_its_other_keys_alone(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("b", full(9))
    kv.push("a", full(1))
    same(pulled(kv, "a"), kv.num_workers)
    kv.push("a", full(kv.rank + 1))
    same(pulled(kv, "a"), total(kv))
    same(pulled(kv, "b"), 9 * kv.num_workers)


@case()
def pulls_of_other_keys_in_between(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("a", full(1))
    same(pulled(kv, "b"), 4)
    same(pulled(kv, "a"), kv.num_workers)
    same(pulled(kv, "a"), kv.num_workers)


@case()
def reset_after_push_wins(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("a", full(1))
    kv.reset("a", full(7))
    same(pulled(kv, "a"), 7)
    kv.push("a", full(kv.rank + 1))
    same(pulled(kv, "a"), total(kv))


@case()
def broadcast_after_push_wins(create: Stores) -> None:
    kv = two_keys(create)
    kv.push(["a", "b"], [full(1), full(1)])
    out = full(0)
    kv.broadcast("a", full(7), out)
    same(out, 7)
    same(pulled(kv, "a"), 7)
    same(pulled(kv, "b"), kv.num_workers)


@case()
def init_between_push_and_pull(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("a", full(kv.rank + 1))
    kv.init("c", full(6))
    kv.push("c", full(3 * (kv.rank + 1)))
    same(pulled(kv, "c"), 3 * total(kv))
    same(pulled(kv, "b"), 4)
    same(pulled(kv, "a"), total(kv))


@case()
def optimizer_set_between_push_and_pull(create: Stores) -> None:
    import ncclkv.optimizer as optimizer

    kv = two_keys(create)
    kv.push("a", full(kv.rank + 1))
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5))
    same(pulled(kv, "a"), total(kv))
    kv.push("b", full(2))
    kv.push("a", full(2))
    kv.set_updater(lambda key, grad, stored: None)
    same(pulled(kv, "a"), total(kv) - kv.num_workers)
    same(pulled(kv, "b"), 4 - kv.num_workers)


@case()
def every_optimizer_push_is_a_step(create: Stores) -> None:
    import ncclkv.optimizer as optimizer

    kv = two_keys(create)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5))
    for _ in range(4):
        kv.push("a", full(1))
    same(pulled(kv, "a"), 2 - 2 * kv.num_workers)
    same(pulled(kv, "b"), 4)


@case()
def wait_completes_what_was_pushed(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("a", full(kv.rank + 1))
    kv.wait("a")
    same(kv.value("a"), total(kv))
    kv.push("b", full(kv.rank + 1))
    kv.wait()
    same(kv.value("b"), total(kv))
    same(kv.value("a"), total(kv))
    kv.wait()
    kv.wait("b")


@case()
def barrier_completes_what_was_pushed(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("a", full(kv.rank + 1))
    kv.barrier()
    same(kv.value("a"), total(kv))
    kv._barrier()
    same(pulled(kv, "a"), total(kv))


@case()
def close_with_pushes_outstanding(create: Stores) -> None:
    kv = two_keys(create)
    kv.push("a", full(1))
    kv.close()


@case()
def a_late_rank_changes_nothing(create: Stores) -> None:
    kv = two_keys(create)
    for i in range(3):
        if kv.rank == i % kv.num_workers:
            time.sleep(0.02)
        kv.push("a", full((i + 1) * (kv.rank + 1)))
        same(pulled(kv, "a"), (i + 1) * total(kv))


@case()
def priorities_change_no_number(create: Stores) -> None:
    kv = create(bucket_bytes=0)
    keys = list(range(6))
    kv.init(keys, [full(0)] * 6)
    for key in keys:
        kv.push(key, full(key + kv.rank), priority=-key)
    kv.push(keys, [full(key * (kv.rank + 1)) for key in keys], priority=3)
    outs = [full(-1) for _ in keys]
    kv.pull(keys, out=outs, priority=7)
    for key, out in zip(keys, outs, strict=True):
        same(out, key * total(kv))
    kv.pushpull(keys, outs, priority=-1)
    for key, out in zip(keys, outs, strict=True):
        same(out, key * total(kv) * kv.num_workers)
