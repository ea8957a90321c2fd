"""``with kv.group()``: one list push followed by one list pull."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from ncclkv.errors import ShapeMismatch, UsageError
from tests.conformance.expect import full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@case()
def pushes_and_pulls_of_several_keys(create: Stores) -> None:
    kv = probed(create)
    three, five = full(0), full(0)
    with kv.group():
        kv.push(3, full(kv.rank + 1))
        kv.push(5, full(10 * (kv.rank + 1)))
        kv.pull(3, out=three)
        kv.pull(5, out=five)
    same(three, total(kv))
    same(five, 10 * total(kv))


@case()
def pulls_happen_at_the_end(create: Stores) -> None:
    kv = probed(create)
    out = full(-1)
    with kv.group():
        kv.pull(3, out=out)
        same(out, -1)
        kv.push(3, full(kv.rank + 1))
        same(out, -1)
    same(out, total(kv))


@case()
def a_key_pushed_twice_is_summed(create: Stores) -> None:
    kv = probed(create)
    with kv.group():
        kv.push(3, full(kv.rank + 1))
        kv.push(5, full(1))
        kv.push(3, [full(kv.rank + 1), full(kv.rank + 1)])
    same(pulled(kv, 3), 3 * total(kv))
    same(pulled(kv, 5), kv.num_workers)


@case()
def one_updater_call_a_key_in_order(create: Stores) -> None:
    kv = probed(create)
    kv.init(4, full(0))
    calls: list[tuple[Any, float]] = []

    def add(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        calls.append((key, float(grad.flat[0])))
        stored += grad

    kv.set_updater(add)
    with kv.group():
        kv.push(5, full(1))
        kv.push(3, full(10))
        kv.push(5, full(100))
        kv.push(4, [full(3), full(4)])
        assert calls == []
    n = kv.num_workers
    wanted = [(3, 10 * n), (4, 7 * n), (5, 101 * n)]
    assert calls == [call for call in wanted if create.updates_here(kv, call[0])]
    same(pulled(kv, 3), 2 + 10 * n)
    same(pulled(kv, 5), 4 + 101 * n)


@case()
def values_of_several_pushes_are_rounded_once(create: Stores) -> None:
    kv = create()
    kv.init("h", full(0, dtype=np.float16))
    one, most = full(1, dtype=np.float16), full(2048, dtype=np.float16)
    if kv.rank > 0:
        one[:] = most[:] = 0
    # Between 2048 and 4096 float16 has the even numbers.
    for values in ([most, one], [one]), ([one], [most, one]), ([most], [one], [one]):
        with kv.group():
            for value in values:
                kv.push("h", value)
        same(pulled(kv, "h", one), 2050)


@case()
def a_buffer_used_again_inside(create: Stores) -> None:
    kv = probed(create)
    buffer = full(1)
    with kv.group():
        kv.push(3, buffer)
        buffer[:] = 2
        kv.push(5, [buffer, buffer])
        buffer[:] = 10
        kv.push(3, buffer)
        buffer[:] = 50
    same(pulled(kv, 3), 11 * kv.num_workers)
    same(pulled(kv, 5), 4 * kv.num_workers)


@case()
def a_push_before_the_group_is_a_step_of_its_own(create: Stores) -> None:
    kv = probed(create)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    kv.push(3, full(1))
    with kv.group():
        kv.push(3, full(2))
        kv.push(5, full(4))
    n = kv.num_workers
    # Momentum -n/2, then -n/4 - n; a sum of both pushes would have made one step of -3n/2.
    same(pulled(kv, 3), 2 - 1.75 * n)
    same(pulled(kv, 5), 4 - 2 * n)


@case()
def pushpull_inside(create: Stores) -> None:
    kv = probed(create)
    value, out = full(kv.rank + 1), full(0)
    with kv.group():
        kv.pushpull(3, value)
        same(value, kv.rank + 1)
        kv.pushpull(5, full(1), out=out)
    same(value, total(kv))
    same(out, kv.num_workers)


@case()
def lists_inside_and_the_order_of_calls(create: Stores) -> None:
    kv = probed(create)
    outs = [full(0), full(0)]
    with kv.group():
        kv.pull([5, 3], out=outs)
        kv.push([5, 3], [full(5), full(3)])
    same(outs[0], 5 * kv.num_workers)
    same(outs[1], 3 * kv.num_workers)


@case()
def an_empty_group(create: Stores) -> None:
    kv = probed(create)
    with kv.group():
        pass
    intact(kv)


@case()
def groups_one_after_another(create: Stores) -> None:
    kv = probed(create)
    for i in range(3):
        out = full(0)
        with kv.group():
            kv.push(3, full(i + kv.rank + 1))
            kv.pull(3, out=out)
        same(out, i * kv.num_workers + total(kv))


@case()
def repeated_groups_with_the_same_arrays(create: Stores) -> None:
    kv = create()
    keys = ["a", "b", "c"]
    kv.init(keys, [full(0, (n,)) for n in (2, 3, 64)])
    values = [full(0, (n,)) for n in (2, 3, 64)]
    outs = [full(0, (n,)) for n in (2, 3, 64)]
    for step in range(4):
        for place, value in enumerate(values):
            value[:] = (10 * step + place) * (kv.rank + 1)
        for out in outs:
            out[:] = -1
        # Backwards in odd steps: the same arrays, in a call of another order.
        turn = list(zip(keys, values, outs, strict=True))[:: -1 if step % 2 else 1]
        with kv.group():
            for key, value, out in turn:
                kv.push(key, value)
                kv.pull(key, out=out)
                same(out, -1)
            if step > 1:
                kv.push("b", values[1])
        for place, out in enumerate(outs):
            twice = 2 if step > 1 and place == 1 else 1
            same(out, twice * (10 * step + place) * total(kv))


@case()
def a_whole_list_in_a_group_that_fails_changes_nothing(create: Stores) -> None:
    kv = probed(create)
    values = [full(kv.rank + 1), full(10 * (kv.rank + 1))]
    kv.push([3, 5], values)
    for value in values:
        value[:] = 77
    with pytest.raises(ZeroDivisionError), kv.group():  # noqa: PT012
        kv.push([3, 5], values)
        raise ZeroDivisionError
    intact(kv, total(kv), 10 * total(kv))


@case()
def pull_without_out_is_refused(create: Stores) -> None:
    kv = probed(create)
    with kv.group():
        kv.push(3, full(kv.rank + 1))
        with refused(kv, UsageError, "pull", "group", "out"):
            kv.pull(3)
        kv.push(5, full(2 * (kv.rank + 1)))
    intact(kv, total(kv), 2 * total(kv))


@case()
def a_refused_push_inside_changes_nothing(create: Stores) -> None:
    kv = probed(create)
    with kv.group():
        kv.push(3, full(kv.rank + 1))
        with refused(kv, ShapeMismatch, "5", "(2, 3)", "(4,)"):
            kv.push([3, 5], [full(100), full(1, (4,))])
    intact(kv, total(kv), 4)


@case()
def verbs_refused_inside_a_group(create: Stores) -> None:
    kv = probed(create)
    calls: dict[str, Callable[[], Any]] = {
        "init": lambda: kv.init(7, full(0)),
        "reset": lambda: kv.reset(3, full(0)),
        "broadcast": lambda: kv.broadcast(3, full(0), full(0)),
        "set_updater": lambda: kv.set_updater(lambda key, grad, stored: None),
        "wait": kv.wait,
        "barrier": kv.barrier,
        "group": lambda: kv.group().__enter__(),
        "close": kv.close,
    }
    with kv.group():
        kv.push(3, full(kv.rank + 1))
        for name, call in calls.items():
            with refused(kv, UsageError, name, "group"):
                call()
    intact(kv, total(kv), 4)


@case()
def an_exception_drops_the_pushes_of_the_group(create: Stores) -> None:
    kv = probed(create)
    kv.push(3, full(kv.rank + 1))
    out = full(-1)
    with pytest.raises(ZeroDivisionError), kv.group():  # noqa: PT012
        kv.push(3, full(100))
        kv.pull(5, out=out)
        raise ZeroDivisionError
    same(out, -1)
    intact(kv, total(kv), 4)


@case()
def outs_of_several_pulls_are_one_list(create: Stores) -> None:
    kv = probed(create)
    both = full(0)
    with kv.group():
        kv.pull(5, out=both)
        kv.pull(3, out=both)
    same(both, 4)


@case()
def outs_of_several_pulls_that_overlap(create: Stores) -> None:
    kv = probed(create)
    space = full(-1, (3, 3))
    with refused(kv, UsageError, "3", "5", "overlap"), kv.group():
        kv.push(3, full(100))
        kv.pull(3, out=space[:2])
        kv.pull(5, out=space[1:])
    same(space, -1)
    intact(kv)


@case()
def an_out_in_a_gradient_that_stays_pushed(create: Stores) -> None:
    kv = probed(create, bucket_bytes=0)
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    kv.init([7, 8], [full(0, (2,)), full(0, (2,))])
    gradient = kv.grad_view(3)
    with refused(kv, UsageError, "5", "grad_view"), kv.group():
        kv.pull(5, out=gradient)
        kv.push(3, full(100))
    same(pulled(kv, 3), 2)
    with kv.group():
        kv.pull([3, 5], out=[full(0), gradient])
        kv.push(3, full(kv.rank + 1))
    same(gradient, 4)
    same(pulled(kv, 3), 2 - total(kv))
