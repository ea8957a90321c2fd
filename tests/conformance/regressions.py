"""Faults of MXNet's stores: each call has the right result here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.errors import KeyAlreadyInitialized, KeyNotInitialized, UpdaterError, UsageError
from tests.conformance.expect import check_words, full, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


def add_three_times(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
    stored += 3 * grad


@case()
def pushed_array_is_not_the_store(create: Stores) -> None:
    kv = create()
    kv.init(3, full(0))
    value = full(kv.rank + 1)
    kv.push(3, value)
    value[:] = 50
    same(pulled(kv, 3), total(kv))
    kv.set_updater(add_three_times)
    kv.push(3, full(1))
    same(value, 50)
    same(pulled(kv, 3), total(kv) + 3 * kv.num_workers)


@case()
def two_keys_pushed_with_one_array_are_two_values(create: Stores) -> None:
    kv = create()
    kv.init([1, 2], [full(0), full(0)])
    value = full(3)
    kv.push([1, 2], [value, value])
    kv.push(2, full(4))
    same(pulled(kv, 1), 3 * kv.num_workers)
    same(pulled(kv, 2), 4 * kv.num_workers)


@case()
def two_keys_given_one_array_at_init_are_two_values(create: Stores) -> None:
    kv = create()
    value = full(3)
    kv.init([1, 2], [value, value])
    value[:] = 50
    kv.push(2, full(4))
    same(pulled(kv, 1), 3)
    same(pulled(kv, 2), 4 * kv.num_workers)


@case()
def several_values_then_an_updater(create: Stores) -> None:
    kv = create()
    kv.init(3, full(0))
    kv.push(3, [full(1), full(1)])
    kv.set_updater(add_three_times)
    kv.push(3, [full(5), full(5)])
    same(pulled(kv, 3), 32 * kv.num_workers)


@case()
def pull_leaves_the_pushed_array_alone(create: Stores) -> None:
    kv = create()
    kv.init(3, full(0))
    value, out = full(kv.rank + 1), full(0)
    kv.push(3, value)
    kv.pull(3, out=out)
    same(value, kv.rank + 1)
    kv.pushpull(3, value, out=out)
    same(value, kv.rank + 1)
    same(out, total(kv))


@case()
def pulled_array_is_not_the_store(create: Stores) -> None:
    kv = create()
    kv.init(3, full(2))
    out = pulled(kv, 3)
    out[:] = 50
    same(pulled(kv, 3), 2)
    given = kv.pull(3)
    given[:] = 50
    same(kv.pull(3), 2)


@case()
def updater_exception_leaves_push(create: Stores) -> None:
    kv = create()
    kv.init("weight", full(2))

    def divide(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        raise ZeroDivisionError("by the reader's own code")

    kv.set_updater(divide)
    out = full(0)
    if create.updates_here(kv, "weight"):
        with pytest.raises(ZeroDivisionError) as caught:
            kv.push("weight", full(1))
        check_words(caught.value, "by the reader's own code", "weight", f"rank {kv.rank}")
        kv.pull("weight", out=out)
    else:
        kv.push("weight", full(1))
        at = f"at key 'weight', on rank {create.owner(kv, 'weight')}"
        with refused(kv, UpdaterError, f"by the reader's own code, {at}"):
            kv.pull("weight", out=out)
    same(out, 2)
    kv.set_updater(add_three_times)
    kv.push("weight", full(1))
    same(pulled(kv, "weight"), 2 + 3 * kv.num_workers)


@case()
def more_values_for_a_key_than_before(create: Stores) -> None:
    kv = create()
    kv.init(3, full(0))
    for count in (2, 6, 1, 4):
        kv.push(3, [full(kv.rank + 1) for _ in range(count)])
        outs = [full(0) for _ in range(count + 1)]
        kv.pull(3, out=outs)
        for out in outs:
            same(out, count * total(kv))


@case()
def second_init_is_refused_and_harmless(create: Stores) -> None:
    for key in (3, "three"):
        kv = create()
        kv.init(key, full(2))
        with refused(kv, KeyAlreadyInitialized, repr(key), "reset"):
            kv.init(key, full(5))
        same(pulled(kv, key), 2)
        kv.push(key, full(1))
        same(pulled(kv, key), kv.num_workers)


@case()
def second_broadcast_replaces(create: Stores) -> None:
    for key in (3, "three"):
        kv = create()
        for value in (2, 5, 7):
            out = full(0)
            kv.broadcast(key, full(value + kv.rank), out)
            same(out, value)


@case()
def push_before_init_leaves_the_key_free(create: Stores) -> None:
    for key in (9, "nine"):
        for value in (full(1), [full(1), full(1)]):
            kv = create()
            with refused(kv, KeyNotInitialized, repr(key), "init"):
                kv.push(key, value)
            kv.init(key, full(2))
            same(pulled(kv, key), 2)


@case()
def push_before_init_with_an_updater_leaves_the_key_free(create: Stores) -> None:
    kv = create()
    kv.set_updater(add_three_times)
    with refused(kv, KeyNotInitialized, "9", "init"):
        kv.push(9, full(1))
    kv.init(9, full(2))
    kv.push(9, full(1))
    same(pulled(kv, 9), 2 + 3 * kv.num_workers)


@case()
def failed_init_leaves_the_key_free(create: Stores) -> None:
    kv = create()
    with refused(kv, UsageError, "'w'", "str"):
        kv.init("w", "1.5")
    assert "w" not in kv
    kv.init("w", full(2))
    same(pulled(kv, "w"), 2)


@case()
def failed_call_does_not_fix_the_key_type(create: Stores) -> None:
    kv = create()
    with refused(kv, KeyNotInitialized, "'zz'"):
        kv.pull("zz", out=full(0))
    with refused(kv, KeyNotInitialized, "'zz'"):
        kv.push("zz", full(0))
    with refused(kv, UsageError, "'zz'"):
        kv.init("zz", None)
    kv.init(3, full(2))
    same(pulled(kv, 3), 2)


@case()
def integer_keys_in_descending_order(create: Stores) -> None:
    kv = create()
    for key in (9, 8, 7):
        kv.init(key, full(key))
    kv.push([9, 7, 8], [full(90), full(70), full(80)])
    for key in (7, 8, 9):
        same(pulled(kv, key), 10 * key * kv.num_workers)


@case()
def float_key_pulled_into_half_precision_first(create: Stores) -> None:
    kv = create()
    kv.init(3, full(1.5))
    out = full(0, dtype=np.float16)
    kv.pull(3, out=out)
    same(out, 1.5)


@case()
def late_learning_rate_and_second_optimizer_take_effect(create: Stores) -> None:
    import ncclkv.optimizer as optimizer

    kv = create()
    kv.init(3, full(0))
    sgd = optimizer.SGD(learning_rate=0.5)
    kv.set_optimizer(sgd)
    kv.push(3, full(1))
    same(pulled(kv, 3), -0.5 * kv.num_workers)
    sgd.set_learning_rate(2.0)
    kv.push(3, full(1))
    same(pulled(kv, 3), -2.5 * kv.num_workers)
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    kv.push(3, full(1))
    same(pulled(kv, 3), -3.5 * kv.num_workers)


@case()
def updater_sees_whole_arrays_and_given_keys(create: Stores) -> None:
    kv = create(bucket_bytes=64)
    seen: list[tuple[Any, Any, Any, Any]] = []

    def look(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        seen.append((key, type(key), grad.shape, stored.shape))

    kv.init("w", full(0, (30, 40)))
    kv.set_updater(look)
    kv.push("w", full(1, (30, 40)))
    wanted = [("w", str, (30, 40), (30, 40))]
    assert seen == (wanted if create.updates_here(kv, "w") else [])
