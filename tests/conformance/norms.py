"""Optimizers that need norms of whole keys: LARS, LAMB, and clipping by the norm of all gradients.

All ranks push equal gradients to keys that average.  If not said otherwise, weights and gradients
have exact norms, so a difference is a wrong element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ncclkv.optimizer as optimizer
from ncclkv.errors import DTypeMismatch, UsageError
from tests.conformance.checkpoints import new_store
from tests.conformance.expect import full, pulled, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores
from tests.optimizers.models import Trajectory

LARGE = 1 << 16
"""Elements of a key whose weights the ranks of a node share: a power of 4."""

SIZES = [4, LARGE, 1, 37, 130_001]
KEYS = [*range(len(SIZES))]
PLACEMENTS = ("every_rank", "root", "sharded")

Arrays = list[NDArray[Any]]


def of(value: float, size: int = 4, dtype: Any = np.float32) -> NDArray[Any]:
    return np.full(size, value, dtype)


def averaged(create: Stores, values: dict[Any, NDArray[Any]], **options: Any) -> Any:
    """Return a store of keys that average."""
    kv = create(**options)
    kv.init([*values], [*values.values()], op="avg")
    return kv


def drawn(seed: list[int], dtype: Any = np.float32) -> Arrays:
    """Return arrays of all sizes, equal on ranks that pass the same seed."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(dtype) for size in SIZES]


@cache
def normal(step: int, rank: int, *sizes: int) -> Arrays:
    """Return what a rank pushes in a step; each rank draws it for the model, too."""
    rng = np.random.default_rng([step, rank])
    return [rng.standard_normal(size) for size in sizes]


def lars(**numbers: Any) -> optimizer.LARS:
    return optimizer.LARS(**{"learning_rate": 1.0, "eta": 0.5, **numbers})


def signs(**numbers: Any) -> optimizer.LAMB:
    """Return LAMB whose direction is the sign of the gradient."""
    exact = {"learning_rate": 0.5, "beta1": 0.0, "beta2": 0.0, "epsilon": 0.0}
    return optimizer.LAMB(**{**exact, **numbers})


@case()
def lars_adapts_the_rate_of_each_key(create: Stores) -> None:
    for nbytes in (0, 1 << 20, 1 << 25):
        values = {"a": of(2), "b": of(2, LARGE), "c": of(0), "d_bias": of(2)}
        kv = averaged(create, values, bucket_bytes=nbytes)
        kv.set_optimizer(lars(wd=0.5))
        kv.push([*values], [of(1), of(1, LARGE), of(1), of(1)])
        # a: |w| is 4 and |g| 2, so the rate is 0.5 * 4 / (2 + 0.5 * 4), for a gradient of 1 + 1.
        same(kv.pull("a"), 2 - 0.5 * 2)
        same(kv.pull("b"), 2 - 0.5 * 2)
        same(kv.pull("c"), -1)
        same(kv.pull("d_bias"), 2 - 2)


@case()
def lamb_steps_as_far_as_the_weights_are_long(create: Stores) -> None:
    for nbytes in (0, 1 << 20):
        values = {"a": of(2), "b": of(4, LARGE), "c": of(0)}
        kv = averaged(create, values, bucket_bytes=nbytes)
        kv.set_optimizer(signs())
        for step in range(1, 4):
            kv.push([*values], [of(-3), of(5, LARGE), of(1)])
            same(kv.pull("a"), 2 * 1.5**step)
            same(kv.pull("b"), 4 * 0.5**step)
            if step == 1:
                same(kv.pull("c"), -0.5)


@case()
def all_gradients_of_a_flush_have_one_norm(create: Stores) -> None:
    for nbytes in (0, 1 << 25):
        values = {"a": of(0), "b": of(0, 1), "c": of(0, LARGE)}
        kv = averaged(create, values, bucket_bytes=nbytes)
        sgd = optimizer.SGD(learning_rate=1.0, rescale_grad=0.5, clip_global_norm=2.5)
        kv.set_optimizer(sgd)
        # The norm of the rescaled gradients is 5, so they are halved.
        for key, gradient in (("a", of(3)), ("b", of(8, 1)), ("c", of(0, LARGE))):
            kv.push(key, gradient)
        same(kv.pull("a"), -0.75)
        same(kv.pull("b"), -2)
        # Other flushes have other norms: 128 and, with a larger bound, 256.
        kv.push("c", of(1, LARGE))
        same(kv.pull("c"), np.float32(-0.5 * 2.5 / (128 + 1e-8)))
        sgd.clip_global_norm = 128.0
        kv.push("c", of(2, LARGE))
        same(kv.pull("c"), np.float32(-0.5 * 2.5 / (128 + 1e-8)) - np.float32(0.5))
        sgd.clip_global_norm = 1000.0
        kv.push(["a", "b"], [of(3), of(8, 1)])
        same(kv.pull("b"), -6)
        same(kv.pull("a"), -2.25)


@case()
def a_second_push_of_a_key_ends_the_flush(create: Stores) -> None:
    kv = averaged(create, {"a": of(0), "b": of(0)})
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0, clip_global_norm=4.0))
    kv.push(["a", "b"], [of(4), of(0)])  # halved
    kv.push("a", of(1))
    kv.push("a", of(8))  # clipped to a norm of 4
    kv.push("b", of(1))  # with it
    same(kv.pull("a"), -2 - 1 - np.float32(8 * np.float32(4 / (np.sqrt(16**2 + 2**2) + 1e-8))))
    kv.push("a", of(1))
    kv.wait()
    same(kv.value("b"), -np.float32(4 / (np.sqrt(16**2 + 2**2) + 1e-8)))


@case()
def a_changed_number_ends_the_flush(create: Stores) -> None:
    for nbytes in (0, 1 << 20):
        for first, second in (("a", "b"), ("b", "a")):
            for nonfinite in ("ignore", "skip_step"):
                options = {"bucket_bytes": nbytes, "nonfinite": nonfinite}
                kv = averaged(create, {"a": of(0), "b": of(0), "c": of(0, LARGE)}, **options)
                sgd = optimizer.SGD(learning_rate=1.0, clip_global_norm=4.0)
                kv.set_optimizer(sgd)
                kv.push([first, "c"], [of(4), of(0, LARGE)])  # halved
                sgd.clip_global_norm = 1000.0
                kv.push(second, of(4))
                same(kv.pull(first), -2)
                same(kv.pull(second), -4)


@case()
def an_overlap_of_some_keys_has_one_norm_with_the_next_push(create: Stores) -> None:
    for nbytes in (0, 1 << 20):
        kv = averaged(create, {"a": of(0), "b": of(0), "c": of(1)}, bucket_bytes=nbytes)
        kv.set_optimizer(optimizer.SGD(learning_rate=1.0, clip_global_norm=5.0))
        with kv.overlap(["a"]):
            kv.push("a", of(3))
        kv.grad_view("c")[...] = 0
        kv.push("b", of(4))
        # The norm is 10: both are halved.
        same(kv.pull("a"), -1.5)
        same(kv.pull("b"), -2)


@case(places=True)
def placements_have_the_same_numbers(create: Stores) -> None:
    """Compare four steps of random numbers.

    Sums in float64 differ in their last bits, which the rate in float32 does not have.
    """
    makers: list[Callable[[], optimizer.Optimizer]] = [
        lambda: optimizer.LARS(learning_rate=0.1, momentum=0.9, eta=0.1, wd=0.01),
        lambda: optimizer.LAMB(learning_rate=0.01, wd=0.01, clip_global_norm=1.0),
        lambda: optimizer.Adam(learning_rate=0.01, clip_global_norm=1.0),
    ]
    for make in makers:
        found = []
        for update_on in PLACEMENTS:
            kv = create(update_on=update_on)
            kv.init(KEYS, drawn([99]))
            chosen = make()
            chosen.lr_mult[1], chosen.wd_mult[3] = 0.5, 0.0
            kv.set_optimizer(chosen)
            for step in range(4):
                gradients = drawn([step, kv.rank])
                for key in KEYS[step % 2 :]:
                    kv.push(key, gradients[key])
                outs = [np.empty(size, np.float32) for size in SIZES]
                kv.pull(KEYS, out=outs)
            found.append(outs)
            kv.close()
        for one, *others in zip(*found, strict=True):
            for other in others:
                same(other, one)


@case()
def fifty_steps_follow_the_models(create: Stores) -> None:
    settings: dict[str, dict[str, Any]] = {
        "lars": {"learning_rate": 0.1, "momentum": 0.9, "eta": 0.1, "wd": 0.01},
        "lamb": {"learning_rate": 0.01, "wd": 0.01},
    }
    for name, numbers in settings.items():
        sizes = [5, 9_000]  # the ranks of a node share the weights of the second
        first = [np.random.default_rng(size).standard_normal(size) for size in sizes]
        kv = create()
        kv.init([0, 1], first)
        kv.set_optimizer(optimizer.create(name, **numbers))
        models = [Trajectory(name, numbers, value) for value in first]
        for step in range(50):
            pushed = [normal(step, rank, *sizes) for rank in range(kv.num_workers)]
            kv.push([0, 1], pushed[kv.rank])
            expected = [
                model.step(np.sum(each, axis=0))
                for model, each in zip(models, zip(*pushed, strict=True), strict=True)
            ]
        for key, wanted in enumerate(expected):
            found = pulled(kv, key, np.zeros(sizes[key]))
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@case()
def a_value_is_that_of_the_last_flush(create: Stores) -> None:
    kv = averaged(create, {"a": of(2), "b": of(2)}, bucket_bytes=0)
    kv.set_optimizer(lars())
    kv.push(["a", "b"], [of(1), of(1)])
    same(kv.value("a"), 2)
    same(kv.pull("a", local=True), 2)
    same(kv.pull("a"), 1)
    same(kv.value("b"), 2)
    kv.wait()
    same(kv.value("b"), 1)


@case()
def gradients_in_their_buckets_are_needed_until_a_flush(create: Stores) -> None:
    kv = averaged(create, {"a": of(2)})
    kv.set_optimizer(lars())
    for step in range(2):
        view = kv.grad_view("a")
        view[...] = 1 if step == 0 else 0.5
        kv.push("a", view)
        with refused(kv, UsageError, "grad_view of key 'a'", "wait('a')"):
            kv.grad_view("a")
        with refused(kv, UsageError, "push of key 'a'", "grad_view", "wait('a')"):
            kv.push("a", view)
        kv.wait("a")
    same(kv.pull("a"), 0.5)


@case()
def blocks_end_their_updates(create: Stores) -> None:
    kv = averaged(create, {"a": of(2), "b": of(2, LARGE)})
    kv.set_optimizer(lars())
    kv.push("b", of(1, LARGE))
    outs = [of(9), of(9, LARGE)]
    with kv.group():
        kv.push(["a", "b"], [of(1), of(0.5, LARGE)])
        kv.pull(["a", "b"], out=outs)
    same(outs[0], 1)
    same(outs[1], 0.5)
    with kv.overlap(["a", "b"]):
        kv.push("b", of(0.25, LARGE))
        kv.push("a", of(0.5))
    same(kv.pull("a"), 0.5)
    same(kv.pull("b"), 0.25)


@case()
def nan_skips_all_updates(create: Stores) -> None:
    makers: list[tuple[Callable[[], optimizer.Optimizer], float]] = [
        (lars, 1.0),
        (signs, 1.0),
        (lambda: optimizer.SGD(learning_rate=0.5, clip_global_norm=1000.0), 1.5),
    ]
    for make, expected in makers:
        kv = averaged(create, {"a": of(2), "b": of(2, LARGE)}, nonfinite="skip_step")
        kv.set_optimizer(make())
        bad = of(1)
        if kv.rank == kv.num_workers - 1:
            bad[1] = np.nan
        kv.push(["a", "b"], [bad, of(1, LARGE)])
        same(kv.pull("a"), 2)
        same(kv.pull("b"), 2)
        kv.wait()
        assert kv.skipped == 1
        kv.push(["a", "b"], [of(1), of(1, LARGE)])
        same(kv.pull("a"), expected)
        same(kv.pull("b"), expected)


@case()
def missing_gradients_are_zeros_also_in_norms(create: Stores) -> None:
    kv = create(missing="zeros")
    kv.init(["a", "b"], [of(2), of(2, LARGE)])
    kv.set_optimizer(lars())
    if kv.rank == 0:
        kv.push("a", of(1))
    if kv.rank == kv.num_workers - 1:
        kv.push("b", of(1, LARGE))
    same(kv.pull("a"), 1)
    same(kv.pull("b"), 1)


@case()
def ranks_that_run_out_of_batches_average_by_those_left(create: Stores) -> None:
    kv = averaged(create, {"a": of(4), "b": of(4, LARGE)})
    kv.set_optimizer(lars(clip_global_norm=1e6))
    with kv.uneven():
        for _ in range(1 + kv.rank):
            kv.push(["a", "b"], [of(1), of(1, LARGE)])
            kv.pull("a")
    # Each step halves the weights: they are longer than the gradients by that.
    same(kv.pull("a"), 4 * 0.5**kv.num_workers)
    same(kv.pull("b"), 4 * 0.5**kv.num_workers)


@case()
def the_momentum_of_lars_follows_a_schedule(create: Stores) -> None:
    halving = optimizer.FactorScheduler(step=1, factor=0.5, base_lr=1.0, stop_factor_lr=0.25)
    kv = averaged(create, {"bias": of(0), "large_bias": of(0, LARGE)})
    kv.set_optimizer(optimizer.LARS(momentum=0.5, lr_scheduler=halving))
    momentum = weight = 0.0
    # The rates are 1, 1/2, 1/4 and 1/4: a halved rate halves the momentum.
    for rate, factor in ((1, 0.5), (0.5, 0.25), (0.25, 0.25), (0.25, 0.5)):
        kv.push(["bias", "large_bias"], [of(1), of(1, LARGE)])
        momentum = factor * momentum - rate
        weight += momentum
        same(kv.pull("bias"), weight)
        same(kv.pull("large_bias"), weight)


@case()
def masters_of_16_bit_weights_have_the_norms(create: Stores) -> None:
    for make in (lars, signs):
        kv = averaged(create, {"a": of(2, 4, np.float16), "b": of(2, LARGE, np.float16)})
        kv.set_optimizer(make(learning_rate=2.0**-13, multi_precision=True))
        for _ in range(16):
            kv.push(["a", "b"], [of(1, 4, np.float16), of(1, LARGE, np.float16)])
        # Steps of 2**-13 and less, of which 16-bit weights would keep none.
        found = pulled(kv, "a", of(0, 4, np.float16))
        assert 0 < 2 - float(found[0]) <= 2**-8
        same(pulled(kv, "b", of(0, LARGE, np.float16)), found[0])


@case()
def complex_weights_have_no_norms_by_key(create: Stores) -> None:
    kv = create()
    kv.init("c", full(3, dtype=np.complex64))
    for make in (lars, signs):
        with refused(kv, DTypeMismatch, "'c'", "complex64", type(make()).__name__):
            kv.set_optimizer(make())
    kv = averaged(create, {"c": of(0, 4, np.complex64), "d": of(0, LARGE, np.complex64)})
    kv.set_optimizer(optimizer.SGD(learning_rate=1.0, clip_global_norm=5.0))
    kv.push(["c", "d"], [of(3 + 4j, 4, np.complex64), of(0, LARGE, np.complex64)])
    same(kv.pull("c"), -1.5 - 2j)


@case()
def clipping_keeps_the_momentum(create: Stores) -> None:
    kv = averaged(create, {"a": of(0)})
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    kv.push("a", of(1))
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5, clip_global_norm=1.0))
    kv.push("a", of(1))  # halved
    same(kv.pull("a"), -0.5 - 0.5)
    kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.5))
    kv.push("a", of(1))
    same(kv.pull("a"), -1 - 0.75)


@case()
def a_bound_cannot_be_added_later(create: Stores) -> None:
    sgd = optimizer.SGD()
    kv = averaged(create, {"a": of(0)})
    kv.set_optimizer(sgd)
    for given in (sgd, optimizer.SGD(clip_global_norm=1.0)):
        before = given.clip_global_norm
        with pytest.raises(UsageError, match=f"clip_global_norm is {before} and cannot become"):
            given.clip_global_norm = 2.0 if before is None else None
        assert given.clip_global_norm == before


@case(needs="safetensors")
def a_resumed_run_has_the_same_bits(create: Stores) -> None:
    with TemporaryDirectory() as directory:
        kv = create()
        kv.init(KEYS, drawn([99]))
        kv.set_optimizer(optimizer.LAMB(learning_rate=0.01, clip_global_norm=1.0))
        for step in range(2):
            kv.push(KEYS, drawn([step, kv.rank]))
        kv.save(directory)
        with new_store(create) as other:
            other.load(directory)
            for store in (kv, other):
                store.push(KEYS, drawn([2, kv.rank]))
            for key, size in enumerate(SIZES):
                like = of(0, size)
                same(pulled(other, key, like), pulled(kv, key, like))
