"""`value` and `grad_view`: reading the store's own memory, and writing gradients into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.errors import KeyNotInitialized, UsageError
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import SHAPE, full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores


def is_read_only(array: Any) -> bool:
    """Return whether an array is read-only; CuPy's never are."""
    return isinstance(array, np.ndarray) and not array.flags.writeable


@case()
def value_before_any_push(create: Stores) -> None:
    kv = probed(create)
    same(kv.value(3), 2)
    same(kv.value(5), 4)
    assert kv.value(3).shape == SHAPE
    assert kv.value(3).dtype == np.float32


@case()
def value_is_read_only(create: Stores) -> None:
    kv = probed(create)
    view = kv.value(3)
    if current_buffers().capabilities.read_only:
        assert is_read_only(view)
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            view.flags.writeable = True
    with refused(kv, UsageError, "5", "out is"):
        kv.pull(5, out=view)
    intact(kv)


@case()
def value_follows_pushes(create: Stores) -> None:
    kv = probed(create)
    for i in range(3):
        kv.push([3, 5], [full(i), full(kv.rank + 1)])
        kv.wait()
        same(kv.value(3), i * kv.num_workers)
        same(kv.value(5), total(kv))


@case()
def value_after_an_updater(create: Stores) -> None:
    kv = probed(create)
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), 2 + total(kv))
    same(kv.value(3), 2 + total(kv))


@case()
def placed_keys_never_move(create: Stores) -> None:
    kv = probed(create)
    before = kv.value(3)
    address = current_buffers().address(before)
    for key in range(10, 40):
        kv.init(key, full(key, (50, 7)))
        kv.push(key, full(1, (50, 7)))
    kv.push(3, full(kv.rank + 1))
    kv.wait()
    after = kv.value(3)
    assert current_buffers().address(after) == address
    same(after, total(kv))


@case()
def grad_view_is_pushed_like_any_array(create: Stores) -> None:
    kv = probed(create)
    grad = kv.grad_view(3)
    assert (grad.shape, grad.dtype) == (SHAPE, np.float32)
    assert not is_read_only(grad)
    for i in range(3):
        kv.grad_view(3)[...] = (i + 1) * (kv.rank + 1)
        kv.push(3, kv.grad_view(3))
        same(pulled(kv, 3), (i + 1) * total(kv))
    same(pulled(kv, 5), 4)


@case()
def grad_view_beside_an_ordinary_push(create: Stores) -> None:
    kv = probed(create)
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    kv.grad_view(5)[...] = 10 * (kv.rank + 1)
    kv.push([3, 5], [full(kv.rank + 1), kv.grad_view(5)])
    same(pulled(kv, 3), 2 + total(kv))
    same(pulled(kv, 5), 4 + 10 * total(kv))


@case()
def grad_view_beside_an_ordinary_push_without_an_updater(create: Stores) -> None:
    kv = probed(create)
    grad, value = kv.grad_view(5), full(0)
    for step in range(1, 4):
        grad[...] = 10 * step * (kv.rank + 1)
        value[:] = step * (kv.rank + 1)
        kv.push([3, 5], [value, grad])
        same(pulled(kv, 3), step * total(kv))
        same(pulled(kv, 5), 10 * step * total(kv))


@case()
def grad_view_that_was_not_pushed_has_no_effect(create: Stores) -> None:
    kv = probed(create)
    kv.grad_view(5)[...] = 99
    kv.push(3, full(kv.rank + 1))
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 5), 4)


@case()
def grad_view_survives_the_flush_of_a_neighbour(create: Stores) -> None:
    kv = probed(create)
    kv.grad_view(5)[...] = kv.rank + 1
    kv.push(3, full(1))
    same(pulled(kv, 3), kv.num_workers)
    same(kv.grad_view(5), kv.rank + 1)
    kv.push(5, kv.grad_view(5))
    same(pulled(kv, 5), total(kv))


@case()
def grad_view_among_several_values(create: Stores) -> None:
    kv = probed(create)
    kv.grad_view(3)[...] = kv.rank + 1
    kv.push(3, [full(10 * (kv.rank + 1)), kv.grad_view(3), kv.grad_view(3)])
    same(pulled(kv, 3), 12 * total(kv))


@case()
def grad_view_pushed_to_another_key(create: Stores) -> None:
    kv = probed(create)
    kv.grad_view(3)[...] = kv.rank + 1
    kv.grad_view(5)[...] = 10 * (kv.rank + 1)
    kv.push([3, 5], [kv.grad_view(5), kv.grad_view(3)])
    same(pulled(kv, 3), 10 * total(kv))
    same(pulled(kv, 5), total(kv))


@case()
def part_of_a_grad_view_turned_around(create: Stores) -> None:
    kv = create()
    kv.init("row", full(0, (4,)))
    current_buffers().write(kv.grad_view("row"), np.arange(4))
    kv.push("row", kv.grad_view("row")[::-1])
    same(pulled(kv, "row", full(0, (4,))), np.arange(4)[::-1] * kv.num_workers)


@case()
def pushpull_of_a_grad_view_in_place(create: Stores) -> None:
    kv = probed(create)
    grad = kv.grad_view(3)
    grad[...] = kv.rank + 1
    kv.pushpull(3, grad)
    same(grad, total(kv))
    kv.pushpull(3, grad)
    same(grad, total(kv) * kv.num_workers)


@case()
def views_of_two_buckets_exchange_their_values(create: Stores) -> None:
    kv = create(bucket_bytes=0)
    shape = (50_000,)  # long enough that the sums are still under way when the pull begins
    kv.init(["a", "b"], [full(0, shape), full(0, shape)])
    views = [kv.grad_view("a"), kv.grad_view("b")]
    for step in range(1, 4):
        for number, view in enumerate(views, start=1):
            view[...] = step * number * (kv.rank + 1)
        kv.push(["a", "b"], views)
        kv.pull(["a", "b"], out=views[::-1])
        for number, (key, other) in enumerate(zip("ab", views[::-1], strict=True), start=1):
            same(other, step * number * total(kv))
            same(kv.pull(key), step * number * total(kv))


@case()
def repeated_pushpull_of_views(create: Stores) -> None:
    kv = create(bucket_bytes=64)
    keys = ["a", "b", "c"]
    kv.init(keys, [full(0, (12,)) for _ in keys])
    views = [kv.grad_view(key) for key in keys]
    for step in range(1, 5):
        for number, view in enumerate(views, start=1):
            view[...] = step * number * (kv.rank + 1)
        kv.pushpull(keys, views)
        for number, view in enumerate(views, start=1):
            same(view, step * number * total(kv))
    # The calls above were prepared.  A pull that flushes nothing still checks where it writes.
    kv.push(keys, views)
    with refused(kv, UsageError, "'a'", "out lies in a grad_view"):
        kv.pull(keys, out=views, local=True)
    kv.wait()
    kv.pull(keys, out=views, local=True)
    for number, view in enumerate(views, start=1):
        same(view, 4 * number * total(kv) * kv.num_workers)


@case(sizes=SEVERAL)
def a_view_on_one_rank_alone_changes_nothing(create: Stores) -> None:
    for look in ("value", "grad_view", "explain_plan"):
        kv = create()
        kv.init("a", full(1))
        if kv.rank == 1:
            getattr(kv, look)(*(["a"] if look != "explain_plan" else []))
        kv.init("b", full(2))
        if kv.rank == 0:
            getattr(kv, look)(*(["b"] if look != "explain_plan" else []))
        kv.init("c", full(3, (5, 5)))
        kv.push(["a", "b"], [full(kv.rank + 1), full(10 * (kv.rank + 1))])
        kv.push("c", full(kv.rank + 1, (5, 5)))
        same(pulled(kv, "a"), total(kv))
        same(pulled(kv, "b"), 10 * total(kv))
        same(pulled(kv, "c", full(0, (5, 5))), total(kv))


@case()
def local_pull_on_one_rank_alone(create: Stores) -> None:
    kv = probed(create)
    if kv.rank == 0:
        out = full(0)
        kv.pull(3, out=out, local=True)
        same(out, 2)
    kv.push([3, 5], [full(kv.rank + 1), full(1)])
    kv.wait()
    if kv.rank == kv.num_workers - 1:
        same(kv.pull(3, local=True), total(kv))
        three, five = kv.pull([3, 5], local=True)
        same(three, total(kv))
        same(five, kv.num_workers)
    intact(kv, total(kv), kv.num_workers)


@case()
def views_of_unknown_keys(create: Stores) -> None:
    kv = probed(create)
    calls: list[Any] = [kv.value, kv.grad_view, kv.wait, kv.spec]
    for call in calls:
        with refused(kv, KeyNotInitialized, "99", "init"):
            call(99)
    with refused(kv, KeyNotInitialized, "99", "init"):
        kv.pull(99, local=True)
    intact(kv)


@case()
def grad_view_of_a_key_that_was_pushed(create: Stores) -> None:
    kv = probed(create)
    kv.push(3, full(kv.rank + 1))
    with refused(kv, UsageError, "3", "pull"):
        kv.grad_view(3)
    kv.wait()
    kv.grad_view(3)[...] = 99
    same(pulled(kv, 3), total(kv))


@case()
def shapes_of_views_are_the_callers_own(create: Stores) -> None:
    kv = probed(create)

    def reshape(key: Any, grad: Any, stored: Any) -> None:
        stored += grad
        grad.shape = stored.shape = (6,)

    kv.value(3).shape = (6,)
    kv.grad_view(3).shape = (6,)
    same(kv.value(3), full(2))
    kv.set_updater(reshape)
    for _ in range(2):
        kv.push(3, full(1))
    assert kv.grad_view(3).shape == SHAPE
    same(pulled(kv, 3), 2 + 2 * kv.num_workers)


@case()
def broadcast_does_not_write_over_a_pushed_gradient(create: Stores) -> None:
    kv = create(bucket_bytes=2048)
    kv.init(["a", "b", "c"], [full(0, (200,)), full(0, (100,)), full(0, (100,))])
    gradient = kv.grad_view("b")
    gradient[...] = 1
    kv.push("b", gradient)
    with refused(kv, UsageError, "'d'", "out lies in a grad_view"):
        kv.broadcast("d", full(9, (100,)), out=gradient)
    same(kv.pull("b"), kv.num_workers)
    assert "d" not in kv
