"""Weights of 16 bits with and without master copies in float32."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import ncclkv.optimizer as optimizer
from tests.conformance.checkpoints import new_store
from tests.conformance.checkpoints_refused import failing
from tests.conformance.expect import full, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores

LARGE = 40_000
"""Elements of a bucket that is large enough for the ranks of a node to share."""


def sgd(*, wide: bool = True, rate: float = 1e-4, **numbers: Any) -> optimizer.SGD:
    """Return an optimizer with a rate so small that 16-bit weights of 1 lose each step."""
    return optimizer.SGD(learning_rate=rate, multi_precision=wide, **numbers)


def ten_steps(kv: Any, dtype: Any, keys: Any = ("a", "b")) -> None:
    """Push gradients of 1 ten times."""
    for _ in range(10):
        for key in keys:
            kv.push(key, np.ones(kv.spec(key).shape, dtype))


def check_small_steps(create: Stores, dtype: Any, rate: float, expected: float) -> None:
    """Make ten steps that 16-bit weights lose, with masters and without."""
    for wide, value in ((True, expected), (False, 1.0)):
        kv = create()
        kv.init(["a", "b"], [np.ones(3, dtype), np.ones(LARGE, dtype)], op="avg")
        kv.set_optimizer(sgd(wide=wide, rate=rate))
        ten_steps(kv, dtype)
        for key in ("a", "b"):
            same(kv.pull(key).astype(np.float32), value)


@case()
def masters_keep_small_steps(create: Stores) -> None:
    check_small_steps(create, np.float16, 1e-4, 0.9990234375)  # MXNet's number


@case(needs="ml_dtypes")
def masters_of_bfloat16_keep_small_steps(create: Stores) -> None:
    from ml_dtypes import bfloat16

    check_small_steps(create, bfloat16, 1e-3, 0.98828125)


@case()
def weights_are_the_rounding_of_float32_weights(create: Stores) -> None:
    rng = np.random.default_rng(1)
    start = rng.standard_normal(LARGE).astype(np.float16)
    kv = create()
    kv.init(["h", "f"], [start, start.astype(np.float32)])
    kv.set_optimizer(sgd(rate=0.01, momentum=0.9, wd=0.1, clip_gradient=1.0))
    for _ in range(5):
        # Multiples of 1/64, whose sums are exact in 16 bits on any number of ranks.
        gradient = (rng.standard_normal(LARGE) * 16).round().astype(np.float16) / 64
        kv.push(["h", "f"], [gradient, gradient.astype(np.float32)])
    same(kv.pull("h"), kv.pull("f").astype(np.float16))


@case()
def a_new_value_starts_a_new_master(create: Stores) -> None:
    kv = create()
    kv.init("a", full(1, dtype=np.float16), op="avg")
    kv.set_optimizer(sgd(rate=1e-4))
    for _ in range(2):
        for _ in range(4):
            kv.push("a", full(1, dtype=np.float16))
        same(kv.pull("a"), np.float16(1 - 4e-4))
        kv.reset("a", full(1, dtype=np.float16))


@case(needs="safetensors")
def checkpoints_hold_the_masters(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(["a", "b"], [np.ones(3, np.float16), np.ones(LARGE, np.float16)], op="avg")
        kv.set_optimizer(sgd(momentum=0.5))
        ten_steps(kv, np.float16)
        kv.save(directory)
        ten_steps(kv, np.float16)
        for given in (None, sgd(momentum=0.5)):
            with new_store(create, bucket_bytes=0) as other:
                if given is not None:
                    other.set_optimizer(given)
                other.load(directory)
                ten_steps(other, np.float16)
                for key in ("a", "b"):
                    same(other.pull(key), kv.pull(key))
        with new_store(create) as other:
            other.set_optimizer(sgd(wide=False, momentum=0.5))
            with failing(other, "load", "multi_precision of SGD", "cannot become True"):
                other.load(directory)


@case(needs="safetensors")
def states_without_masters_start_them_from_the_weights(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init("a", full(1, dtype=np.float16), op="avg")
        kv.set_optimizer(sgd(wide=False, momentum=0.5))
        kv.push("a", full(8, dtype=np.float16))
        kv.save(directory)
        same(kv.pull("a"), np.float16(1 - 8e-4))
        with new_store(create) as other:
            other.set_optimizer(sgd(momentum=0.5))
            other.load(directory)
            momentum = np.float32(-8e-4)
            master = np.float32(np.float16(1 - 8e-4))
            for _ in range(3):
                other.push("a", full(0, dtype=np.float16))
                momentum = momentum * np.float32(0.5)
                master = master + momentum
            same(other.pull("a"), np.float16(master))


@case(needs="safetensors")
def states_with_masters_need_an_optimizer_with_masters(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init("a", full(1, dtype=np.float16))
        kv.set_optimizer(sgd())
        kv.push("a", full(1, dtype=np.float16))
        kv.save_optimizer_states(directory)
        with new_store(create) as other:
            other.init("a", full(1, dtype=np.float16))
            other.set_optimizer(sgd(wide=False))
            with failing(other, "load_optimizer_states", "'a'", "master (float32)", "has none"):
                other.load_optimizer_states(directory)
