"""Captured steps, compared with the same calls made each time; for stores in a GPU's memory.

These cases cover the content of a step; `tests.conformance.captures_between_calls` covers the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import ncclkv.optimizer as optimizer
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import same
from tests.conformance.store_pair import Side, StorePair
from tests.conformance.stores import Stores

CAPTURES: dict[str, Callable[[Stores], None]] = {}
"""Cases by name; each takes the opener of stores."""


def captured(body: Callable[[Stores], None]) -> Callable[[Stores], None]:
    """List a case."""
    CAPTURES[body.__name__] = body
    return body


def momentum() -> optimizer.SGD:
    """Return an optimizer that uses every number except a clip."""
    return optimizer.SGD(learning_rate=0.3, momentum=0.9, wd=0.01, rescale_grad=0.7)


@captured
def a_sum_replaces_the_value(create: Stores) -> None:
    StorePair(create).steps()


@captured
def averages_maxima_and_products(create: Stores) -> None:
    for op in ("avg", "max", "prod"):
        StorePair(create, op=op).steps(2)


@captured
def whole_numbers(create: Stores) -> None:
    StorePair(create, dtype=np.int64).steps(2)


@captured
def gradient_descent(create: Stores) -> None:
    StorePair(create, make=lambda: optimizer.SGD(learning_rate=0.5)).steps()


@captured
def momentum_decay_and_rescaling(create: Stores) -> None:
    StorePair(create, make=momentum).steps()


@captured
def sixteen_bits(create: Stores) -> None:
    StorePair(create, make=momentum, dtype=np.float16).steps()


CODECS: list[dict[str, Any]] = [
    {"type": "fp16"},
    {"type": "fp16", "error_feedback": True},
    {"type": "bf16", "error_feedback": True},
    {"type": "2bit", "threshold": 3.0},
    {"type": "1bit"},
    {"type": "topk", "ratio": 0.1},
]


@captured
def encoded_gradients(create: Stores) -> None:
    for codec in CODECS:
        StorePair(create, make=momentum, codec=codec).steps()


@captured
def sums_that_nodes_encode(create: Stores) -> None:
    for codec in CODECS:
        StorePair(create, make=momentum, codec={**codec, "scope": "node"}).steps()


@captured
def clipping(create: Stores) -> None:
    StorePair(create, make=lambda: optimizer.SGD(learning_rate=0.1, clip_gradient=2.5)).steps()


@captured
def a_schedule(create: Stores) -> None:
    """Compare steps in which the rate changes, and steps with the rate of the step before."""

    def make() -> optimizer.SGD:
        halving = optimizer.FactorScheduler(step=2, factor=0.5, base_lr=0.5)
        return optimizer.SGD(momentum=0.5, lr_scheduler=halving)

    pair = StorePair(create, make=make)
    pair.steps(4)
    assert [side.optimizer.num_update for side in pair.sides] == [5, 5]
    pair.each(lambda side: setattr(side.optimizer, "lr_scheduler", lambda number: 1 / number))
    pair.steps(2)


@captured
def optimizers_that_count_updates(create: Stores) -> None:
    for name in ("adam", "adamw", "ftml"):
        StorePair(create, make=partial(optimizer.create, name, learning_rate=0.1)).steps()


@captured
def optimizers_that_need_norms(create: Stores) -> None:
    def push_alone(side: Side) -> None:
        for key, gradient in zip(side.keys, side.gradients, strict=True):
            side.kv.push(key, gradient)

    for make in (
        lambda: optimizer.LARS(learning_rate=0.1, momentum=0.9, eta=0.1, wd=0.01),
        lambda: optimizer.LAMB(learning_rate=0.01, wd=0.01),
        lambda: optimizer.LAMB(learning_rate=0.01, clip_global_norm=3.0),
        lambda: optimizer.SGD(learning_rate=0.1, clip_global_norm=3.0),
    ):
        for step in (Side.pushpull, push_alone):
            pair = StorePair(create, step, make)
            pair.steps(2)
            for side in pair.sides:
                side.optimizer.learning_rate = 0.25
                if side.optimizer.clip_global_norm is not None:
                    side.optimizer.clip_global_norm = 1.0
            pair.steps(2)


@captured
def factors_of_keys(create: Stores) -> None:
    def make() -> optimizer.SGD:
        made = momentum()
        made.lr_mult = {"a": 0.1, "c": 3.0}
        made.wd_mult = {"b": 0.0}
        return made

    StorePair(create, make=make).steps()


@captured
def a_learning_rate_that_changes(create: Stores) -> None:
    for make in (momentum, lambda: optimizer.SGD(learning_rate=0.3)):
        pair = StorePair(create, make=make)
        for rate in (0.3, 0.1, 1e-9, 0.1, 0.0, 1 / 3):
            for side in pair.sides:
                side.optimizer.learning_rate = rate
            pair.steps(2)


@captured
def a_learning_rate_that_changes_with_factors(create: Stores) -> None:
    def make() -> optimizer.SGD:
        made = momentum()
        made.lr_mult = {"a": 1 / 3}
        return made

    pair = StorePair(create, make=make)
    for rate in (0.1, 0.7):
        for side in pair.sides:
            side.optimizer.learning_rate = rate
        pair.steps(2)


@captured
def every_hyperparameter_that_changes(create: Stores) -> None:
    pair = StorePair(create, make=momentum)
    for changes in (
        {"wd": 0.5},
        {"rescale_grad": 0.25},
        {"clip_gradient": 1.5},
        {"clip_gradient": None, "wd": 0.0},
        {"lr_mult": {"a": 0.5}},
        {"lr_mult": {"a": 0.5, "b": 2.0}, "wd_mult": {"c": 0.0}, "wd": 0.1},
        {"lr_mult": {}, "wd_mult": {}},
    ):
        for side in pair.sides:
            for name, number in changes.items():
                setattr(side.optimizer, name, number)
        pair.steps(2)


@captured
def a_common_training_loop(create: Stores) -> None:
    def step(side: Side) -> None:
        for number, (key, gradient) in enumerate(zip(side.keys, side.gradients, strict=True)):
            side.kv.push(key, gradient, priority=-number)
        for key, out in zip(side.keys, side.outs, strict=True):
            side.kv.pull(key, out=out)

    StorePair(create, step, momentum).steps()


@captured
def a_group(create: Stores) -> None:
    def step(side: Side) -> None:
        with side.kv.group():
            for key, gradient, out in zip(side.keys, side.gradients, side.outs, strict=True):
                side.kv.push(key, gradient)
                side.kv.pull(key, out=out)

    StorePair(create, step, momentum).steps()


@captured
def several_arrays_of_a_key(create: Stores) -> None:
    def step(side: Side) -> None:
        lists = [[gradient, gradient, gradient] for gradient in side.gradients]
        side.kv.push(side.keys, lists)
        side.kv.pull(side.keys, out=[[out] for out in side.outs])

    StorePair(create, step, momentum).steps()


@captured
def several_arrays_that_are_encoded(create: Stores) -> None:
    def step(side: Side) -> None:
        if not side.own:
            put = current_buffers().put
            side.own["more"] = [
                put(np.linspace(-3, 3, each.size, dtype=np.float32)) for each in side.gradients
            ]
        pairs = zip(side.gradients, side.own["more"], strict=True)
        side.kv.push(side.keys, [[one, other, one] for one, other in pairs])
        side.kv.pull(side.keys, out=[[out] for out in side.outs])

    for codec in CODECS:
        StorePair(create, step, momentum, codec=codec).steps()


@captured
def the_store_s_own_arrays(create: Stores) -> None:
    def step(side: Side) -> None:
        if "views" not in side.own:  # without a capture the user fills them every time
            side.own["views"] = [side.kv.grad_view(key) for key in side.keys]
        side.kv.push(side.keys, side.own["views"])
        side.kv.pull(side.keys, out=side.outs)

    pair = StorePair(create, step, momentum)
    for number in range(3):
        for side in pair.sides:
            for view in side.own["views"]:
                current_buffers().write(view, np.arange(view.size) % 5 + number + side.kv.rank)
        pair.step(write=False)
        for key in pair.plain.keys:
            same(pair.replayed.kv.value(key), current_buffers().get(pair.plain.kv.value(key)))
        pair.compare()


@captured
def views_taken_inside_a_capture(create: Stores) -> None:
    def step(side: Side) -> None:
        for key, gradient in zip(side.keys, side.gradients, strict=True):
            view = side.kv.grad_view(key)
            current_buffers().copy(
                gradient, view
            )  # a kernel of the user's own, captured with the rest
            side.kv.push(key, view)
        for key, out in zip(side.keys, side.outs, strict=True):
            side.kv.pull(key, out=out)
            current_buffers().copy(side.kv.value(key), out)

    StorePair(create, step, momentum).steps()


@captured
def values_taken_locally(create: Stores) -> None:
    def step(side: Side) -> None:
        side.kv.pull(side.keys, out=side.outs, local=True)
        side.kv.push(side.keys, side.gradients)

    StorePair(create, step).steps()


@captured
def a_pull_before_and_after_the_push(create: Stores) -> None:
    def step(side: Side) -> None:
        side.kv.pull("a", out=side.outs[1])
        side.kv.pushpull("a", side.gradients[0], side.outs[0])
        side.kv.push("a", side.gradients[0])

    StorePair(create, step, momentum).steps()


@captured
def some_keys_of_a_bucket(create: Stores) -> None:
    def step(side: Side) -> None:
        side.kv.push(["a", "d"], [side.gradients[0], side.gradients[3]])

    StorePair(create, step, momentum).steps()


@captured
def more_arrays_of_a_key_than_a_launch_takes(create: Stores) -> None:
    """Check many sums of floats, for which no memory is allocated."""

    def step(side: Side) -> None:
        side.kv.push("a", [side.gradients[0]] * 300)
        side.kv.pull("a", out=side.outs[0])

    StorePair(create, step).steps(2)


@captured
def arrays_of_any_layout(create: Stores) -> None:
    """Check strided gradients and outs of another dtype, which CuPy's own kernels copy."""

    def step(side: Side) -> None:
        if not side.own:
            side.own["wide"] = current_buffers().put(np.zeros(400, np.float32))
            side.own["out"] = current_buffers().put(np.zeros(200, np.float64))
        side.kv.push("c", side.own["wide"][::2])
        side.kv.pull("c", out=side.own["out"])

    pair = StorePair(create, step, momentum)
    for number in range(2):
        for side in pair.sides:
            current_buffers().write(side.own["wide"], np.arange(400) % 9 + number)
        pair.step()
        pair.compare()
        same(pair.replayed.own["out"], current_buffers().get(pair.plain.own["out"]))
