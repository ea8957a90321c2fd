"""Captures and replays that are refused for the store's updater, or for a step not run before."""

from __future__ import annotations

from typing import Any

import ncclkv.optimizer as optimizer
from ncclkv.errors import UsageError
from tests.conformance.capabilities import current_buffers
from tests.conformance.captures_misuse import Ready, misuse
from tests.conformance.expect import full, intact, probed, pulled, refused, same, total
from tests.conformance.stores import Stores

# Steps that were not run before


@misuse
def keys_without_a_bucket(create: Stores) -> None:
    kv = probed(create)
    mine = current_buffers().put(full(1))
    with (
        refused(kv, UsageError, "capture: some keys have no slot yet", "make the same step once"),
        kv.capture(),
    ):
        kv.push(3, mine)
    intact(kv)


@misuse
def a_bucket_that_was_never_launched(create: Stores) -> None:
    ready = Ready(create, bucket_bytes=0)
    kv = ready.kv
    kv.init(7, full(0))
    kv.value(7)
    words = (
        "capture: bucket 2 (key 7",
        "never launched under this updater",
        "make the same step once before",
    )
    with refused(kv, UsageError, *words), kv.capture():
        kv.push(3, ready.gradients[0])
        kv.push(7, ready.gradients[0])
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 7), 0)


@misuse
def an_optimizer_that_was_never_used(create: Stores) -> None:
    ready = Ready(create)
    ready.kv.set_optimizer(optimizer.SGD(learning_rate=1.0, momentum=0.5))
    words = (
        "capture: bucket 0",
        "never launched under this updater",
        "make the same step once before",
    )
    with refused(ready.kv, UsageError, *words), ready.kv.capture():
        ready.pushpull()
    ready.pushpull()
    ready.step().replay()
    # Two steps of momentum: 1, then 1.5 times the sum.
    same(ready.outs[0], total(ready.kv) - 2.5 * total(ready.kv))


# Updaters


@misuse
def a_function_as_updater(create: Stores) -> None:
    ready = Ready(create)

    def add(key: Any, grad: Any, stored: Any) -> None:
        stored += grad

    ready.kv.set_updater(add)
    words = ("the updater add is a function, which a captured step would not call", "optimizer")
    with refused(ready.kv, UsageError, *words), ready.kv.capture():
        ready.pushpull()
    same(pulled(ready.kv, 3), total(ready.kv))


@misuse
def a_factor_that_is_no_number(create: Stores) -> None:
    ready = Ready(create)
    made = optimizer.SGD(learning_rate=1.0)
    ready.kv.set_optimizer(made)
    ready.pushpull()
    step = ready.step()
    made.lr_mult[3] = float("nan")
    with refused(ready.kv, UsageError, "lr_mult of key 3 is nan"):
        step.replay()
    made.lr_mult[3] = 1.0
    step.replay()
    same(ready.outs[0], -total(ready.kv))  # pulled once as the sum, then after two steps


@misuse
def another_updater(create: Stores) -> None:
    ready = Ready(create)
    plain = ready.step()
    ready.kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    words = ("updater is SGD and was none, another, when this step was captured; capture it again",)
    with refused(ready.kv, UsageError, *words):
        plain.replay()
    ready.pushpull()
    step = ready.step()
    ready.kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
    with refused(ready.kv, UsageError, "updater is SGD and was SGD, another"):
        step.replay()
    same(pulled(ready.kv, 3), 0)


@misuse
def another_codec(create: Stores) -> None:
    ready = Ready(create)
    ready.kv.set_gradient_compression({"type": "fp16", "error_feedback": True})
    ready.pushpull()
    step = ready.step()
    ready.kv.set_gradient_compression(None)
    words = ("set_gradient_compression was called after this step was captured", "capture it again")
    with refused(ready.kv, UsageError, *words):
        step.replay()
    ready.pushpull()
    same(pulled(ready.kv, 3), total(ready.kv))


@misuse
def an_optimizer_that_changes_inside(create: Stores) -> None:
    ready = Ready(create, bucket_bytes=0)
    made = optimizer.SGD(learning_rate=1.0)
    ready.kv.set_optimizer(made)
    ready.pushpull()
    words = ("the optimizer changed between two pushes of the step", "or between replays")
    with refused(ready.kv, UsageError, *words), ready.kv.capture():
        ready.kv.push(3, ready.gradients[0])
        made.learning_rate = 0.5
        ready.kv.push(5, ready.gradients[1])
    same(pulled(ready.kv, 3), 0)
    same(pulled(ready.kv, 5), 0)
