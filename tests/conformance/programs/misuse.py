"""Wrong calls, each with the error that it must raise before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ncclkv import optimizer
from ncclkv.errors import (
    DTypeMismatch,
    KeyAlreadyInitialized,
    KeyNotInitialized,
    KeyTypeMismatch,
    NotSupported,
    ShapeMismatch,
    UsageError,
)
from tests.conformance.programs.arrays import dtype_of
from tests.conformance.programs.plan import KeyPlan

Wrong = tuple[type[BaseException], Callable[[], Any]]
MISUSES: dict[str, Callable[[Any, KeyPlan], Wrong]] = {}


def good(plan: KeyPlan) -> Any:
    """Return an array that the key accepts, of ones, which no payload contains."""
    return np.ones(plan.shape).astype(dtype_of(plan.dtype))


def longer(plan: KeyPlan) -> Any:
    """Return an array of another shape."""
    return np.ones((*plan.shape, 2)).astype(dtype_of(plan.dtype))


def absent(plan: KeyPlan) -> Any:
    """Return a key of the same kind that no program initialises."""
    return "absent" if isinstance(plan.key, str) else 99


def other_kind(plan: KeyPlan) -> Any:
    return 99 if isinstance(plan.key, str) else "absent"


def wrong(error: type[BaseException]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a wrong call of (kv, key, plan) to the table."""

    def add(body: Callable[..., Any]) -> Callable[..., Any]:
        MISUSES[body.__name__] = lambda kv, plan: (error, lambda: body(kv, plan.key, plan))
        return body

    return add


@wrong(KeyNotInitialized)
def push_of_an_absent_key(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push([key, absent(plan)], [good(plan), good(plan)])


@wrong(KeyNotInitialized)
def pull_of_an_absent_key(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.pull([key, absent(plan)], out=[good(plan), good(plan)])


@wrong(KeyNotInitialized)
def wait_for_an_absent_key(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.wait([key, absent(plan)])


@wrong(KeyNotInitialized)
def reset_of_an_absent_key(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.reset([key, absent(plan)], [good(plan), good(plan)])


@wrong(KeyTypeMismatch)
def push_of_the_other_kind(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push(other_kind(plan), good(plan))


@wrong(KeyTypeMismatch)
def init_of_the_other_kind(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.init(other_kind(plan), good(plan))


@wrong(KeyTypeMismatch)
def keys_of_two_kinds(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push([key, other_kind(plan)], [good(plan), good(plan)])


@wrong(KeyTypeMismatch)
def key_that_is_a_float(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push([key, 3.0], [good(plan), good(plan)])


@wrong(KeyAlreadyInitialized)
def init_again(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.init([absent(plan), key], [good(plan), good(plan)])


@wrong(KeyAlreadyInitialized)
def init_twice_in_a_list(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.init([absent(plan), absent(plan)], [good(plan), good(plan)])


@wrong(UsageError)
def init_with_an_unknown_op(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.init(absent(plan), good(plan), op="mean")


@wrong(NotSupported)
def init_with_an_op_without_meaning(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.init(absent(plan), np.ones(2, complex), op="max")


@wrong(ShapeMismatch)
def push_of_another_shape(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push([key, key], [good(plan), longer(plan)])


@wrong(ShapeMismatch)
def reset_to_another_shape(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.reset(key, longer(plan))


@wrong(ShapeMismatch)
def pull_into_another_shape(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.pull(key, out=[good(plan), longer(plan)])


@wrong(ShapeMismatch)
def pushpull_into_another_shape(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.pushpull(key, good(plan), out=longer(plan))


@wrong(ShapeMismatch)
def broadcast_into_another_shape(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.broadcast(key, good(plan), longer(plan))


@wrong(ShapeMismatch)
def broadcast_of_a_new_key_into_another_shape(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.broadcast(absent(plan), good(plan), longer(plan))


@wrong(DTypeMismatch)
def push_of_another_dtype(kv: Any, key: Any, plan: KeyPlan) -> None:
    other = np.int16 if plan.dtype != "int16" else np.int32
    kv.push([key, key], [good(plan), np.ones(plan.shape, other)])


@wrong(DTypeMismatch)
def init_of_an_unknown_dtype(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.init(absent(plan), np.array(["a"]))


@wrong(UsageError)
def push_of_a_number(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push([key, key], [good(plan), 3.0])


@wrong(UsageError)
def push_of_nothing(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push(key, [])


@wrong(UsageError)
def push_of_too_few(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push([key, key], [good(plan)])


@wrong(UsageError)
def push_with_a_broken_priority(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.push(key, good(plan), priority=0.5)


@wrong(UsageError)
def pushpull_into_a_read_only_array(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.pushpull(key, good(plan), out=kv.value(key))


@wrong(UsageError)
def pull_into_overlapping_arrays(kv: Any, key: Any, plan: KeyPlan) -> None:
    size = good(plan).size
    flat = np.ones(2 * size).astype(dtype_of(plan.dtype))
    places = [flat[lo : lo + size].reshape(plan.shape) for lo in (0, size // 2)]
    kv.pull(key, out=places if size > 1 else 3.0)


@wrong(UsageError)
def reset_to_two_arrays(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.reset(key, [good(plan), good(plan)])


@wrong(UsageError)
def reset_twice_in_a_list(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.reset([key, key], [good(plan), good(plan)])


@wrong(UsageError)
def broadcast_without_out(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.broadcast(key, good(plan), None)


@wrong(UsageError)
def updater_that_is_none(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.set_updater(None)


@wrong(UsageError)
def updater_that_is_an_optimizer(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.set_updater(optimizer.SGD())


@wrong(UsageError)
def optimizer_that_is_a_name(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.set_optimizer("sgd")


@wrong(UsageError)
def compression(kv: Any, key: Any, plan: KeyPlan) -> None:
    kv.set_gradient_compression({"type": "topk", "scope": "host"})
