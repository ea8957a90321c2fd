"""Functions as updaters: the times, arguments and order of their calls."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ncclkv.errors import UsageError
from tests.conformance.expect import full, pulled, refused, same, total
from tests.conformance.registry import case
from tests.conformance.stores import Stores


class Log:
    """An updater that adds, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, float]] = []
        self.disposed = 0

    def update(self, key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        self.calls.append((key, float(grad.flat[0])))
        stored += grad

    def dispose(self) -> None:
        self.disposed += 1

    def saw(self, create: Stores, kv: Any, *calls: tuple[Any, float]) -> None:
        """Check the calls since the last check: of these, the calls for keys updated here."""
        wanted = [call for call in calls if create.updates_here(kv, call[0])]
        assert self.calls == wanted
        self.calls.clear()


@case()
def integers_in_ascending_order(create: Stores) -> None:
    kv, log = create(), Log()
    kv.init([9, 3, -2, 5], [full(0)] * 4)
    kv.set_updater(log.update)
    kv.push([9, 5, 3, -2], [full(90), full(50), full(30), full(20)])
    n = kv.num_workers
    log.saw(create, kv, (-2, 20 * n), (3, 30 * n), (5, 50 * n), (9, 90 * n))


@case()
def strings_in_the_order_of_init(create: Stores) -> None:
    kv, log = create(), Log()
    for name in ("z", "a", "m"):
        kv.init(name, full(0))
    kv.set_updater(log.update)
    kv.push(["m", "a", "z"], [full(1), full(2), full(3)])
    n = kv.num_workers
    log.saw(create, kv, ("z", 3 * n), ("a", 2 * n), ("m", n))


@case()
def repeats_of_a_key_are_one_call(create: Stores) -> None:
    kv, log = create(), Log()
    kv.init([1, 3], [full(0), full(0)])
    kv.set_updater(log.update)
    kv.push([3, 1, 3], [full(1), full(10), full(100)])
    n = kv.num_workers
    log.saw(create, kv, (1, 10 * n), (3, 101 * n))
    kv.push([3, 3], [[full(1), full(2)], full(4)])
    log.saw(create, kv, (3, 7 * n))


@case()
def every_push_is_a_call_before_it_returns(create: Stores) -> None:
    kv, log = create(), Log()
    kv.init(["a", "b"], [full(0), full(0)])
    kv.set_updater(log.update)
    for i in range(1, 4):
        kv.push("a", full(i * (kv.rank + 1)))
        log.saw(create, kv, ("a", i * total(kv)))
    same(pulled(kv, "a"), 6 * total(kv))
    same(pulled(kv, "b"), 0)


@case()
def pull_calls_nothing(create: Stores) -> None:
    kv, log = create(), Log()
    kv.init(3, full(2))
    kv.set_updater(log.update)
    same(pulled(kv, 3), 2)
    kv.wait()
    log.saw(create, kv)


@case()
def pushes_before_the_updater_replace(create: Stores) -> None:
    kv, log = create(), Log()
    kv.init(["a", "b"], [full(2), full(3)])
    kv.push("a", full(5))
    kv.set_updater(log.update)
    log.saw(create, kv)
    kv.push("a", full(1))
    log.saw(create, kv, ("a", kv.num_workers))
    same(pulled(kv, "a"), 6 * kv.num_workers)
    same(pulled(kv, "b"), 3)


@case()
def a_returned_array_is_ignored_with_one_warning(create: Stores) -> None:
    kv = create()
    kv.init(3, full(2))

    def add(key: int, grad: NDArray[Any], stored: NDArray[Any]) -> NDArray[Any]:
        return stored + grad

    kv.set_updater(add)
    # Ranks that are threads share the warnings: one rank alone may record them.
    warns = create.updates_here(kv, 3) and (kv.rank == 0 or kv.update_on != "every rank")
    with pytest.warns(UserWarning, match="updater add") if warns else nullcontext() as caught:
        kv.push(3, full(1))
    kv.push(3, full(1))
    same(pulled(kv, 3), 2)
    if caught is not None:
        (warning,) = caught
        for word in ("updater add", "a value of type", "key 3", "ignored", "stored[...] = ..."):
            assert word in str(warning.message)
        assert warning.filename == __file__


@case()
def a_function_of_other_arguments_is_refused_before_a_push(create: Stores) -> None:
    kv = create()
    kv.init(3, full(2))
    for updater in (lambda grad, stored: None, lambda key, grad, stored, rate: None):
        with refused(kv, UsageError, "set_updater", "(key, input, stored)", "def updater"):
            kv.set_updater(updater)
    kv.push(3, full(1))
    same(pulled(kv, 3), kv.num_workers)
    kv.set_updater(lambda *arguments: None)


@case()
def an_array_that_is_changed_and_returned_needs_no_warning(create: Stores) -> None:
    kv = create()
    kv.init(3, full(2))
    kv.set_updater(lambda key, grad, stored: np.add(stored, grad, out=stored))
    kv.push(3, full(1))
    same(pulled(kv, 3), 2 + kv.num_workers)


@case()
def a_new_updater_takes_over(create: Stores) -> None:
    kv, first, second = create(), Log(), Log()
    kv.init(3, full(2))
    kv.set_updater(first.update)
    kv.push(3, full(1))
    kv.set_updater(second.update)
    kv.push(3, full(1))
    first.saw(create, kv, (3, kv.num_workers))
    second.saw(create, kv, (3, kv.num_workers))
    same(pulled(kv, 3), 2 + 2 * kv.num_workers)


@case()
def an_object_with_update_and_dispose(create: Stores) -> None:
    kv, log = create(), Log()
    kv.init(3, full(2))
    kv.set_updater(log)
    kv.push(3, full(1))
    log.saw(create, kv, (3, kv.num_workers))
    same(pulled(kv, 3), 2 + kv.num_workers)
    assert log.disposed == 0
    kv.close()
    kv.close()
    assert log.disposed == 1


@case()
def an_object_is_disposed_of_when_replaced(create: Stores) -> None:
    kv, log = create(), Log()
    kv.set_updater(log)
    kv.set_updater(lambda key, grad, stored: None)
    assert log.disposed == 1


@case()
def arrays_have_the_shape_and_dtype_of_the_key(create: Stores) -> None:
    kv = create()
    seen: dict[Any, Any] = {}

    def look(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        seen[key] = [(a.shape, a.dtype) for a in (grad, stored)]
        stored[...] = 7

    shapes = {"scalar": (), "empty": (0, 2), "cube": (2, 3, 4)}
    for name, shape in shapes.items():
        kv.init(name, full(1, shape, np.float64))
    kv.set_updater(look)
    kv.push(list(shapes), [full(1, s, np.float64) for s in shapes.values()])
    for name, shape in shapes.items():
        if create.updates_here(kv, name):
            assert seen[name] == [(shape, np.float64)] * 2
        same(pulled(kv, name, full(0, shape, np.float64)), full(7, shape))


@case()
def state_of_the_updater_is_its_own(create: Stores) -> None:
    kv = create()
    momentum: dict[Any, Any] = {}

    def step(key: Any, grad: NDArray[Any], stored: NDArray[Any]) -> None:
        momentum[key] = 0.5 * momentum.get(key, 0) + grad
        stored -= momentum[key]

    kv.init(["a", "b"], [full(0), full(0)])
    kv.set_updater(step)
    for _ in range(3):
        kv.push(["a", "b"], [full(4), full(8)])
    same(pulled(kv, "a"), -17 * kv.num_workers)
    same(pulled(kv, "b"), -34 * kv.num_workers)


@case()
def keys_made_after_the_updater(create: Stores) -> None:
    kv, log = create(), Log()
    kv.set_updater(log.update)
    kv.init("a", full(1))
    kv.push("a", full(1))
    kv.init("b", full(2))
    kv.push(["b", "a"], [full(20), full(10)])
    n = kv.num_workers
    log.saw(create, kv, ("a", n), ("a", 10 * n), ("b", 20 * n))
    same(pulled(kv, "a"), 1 + 11 * n)
    same(pulled(kv, "b"), 2 + 20 * n)


@case()
def gradients_may_be_gone_after_the_call(create: Stores) -> None:
    kv = create()
    kv.init(3, full(0))
    kv.set_updater(Log().update)
    value = full(1)
    kv.push(3, value)
    value[:] = 99
    kv.push(3, value)
    same(pulled(kv, 3), 100 * kv.num_workers)


@case()
def the_same_updater_again_is_not_disposed_of(create: Stores) -> None:
    kv, log = create(), Log()
    kv.init(3, full(0))
    kv.set_updater(log)
    kv.set_updater(log)
    assert log.disposed == 0
    kv.push(3, full(1))
    log.saw(create, kv, (3, kv.num_workers))
    kv.set_updater(Log())
    assert log.disposed == 1
