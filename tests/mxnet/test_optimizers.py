"""MXNet's optimizers on a store, against MXNet's own local store."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import NotSupported, ReadOnlyAttribute, UsageError
from tests.mxnet.training import SHAPES, difference, named, trained

mx = pytest.importorskip("mxnet", reason="MXNet is not installed")
import ncclkv.mxnet  # noqa: E402  # imports MXNet

NAMES, NUMBERS = list(SHAPES), list(range(len(SHAPES)))
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "clip_gradient": 0.7}),
    ("nag", {"momentum": 0.9}),
    ("adam", {"clip_gradient": 0.7}),
    ("adam", {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-3}),
    ("rmsprop", {}),
    ("rmsprop", {"centered": True, "clip_weights": 0.5}),
    ("adagrad", {"eps": 1e-3}),
    ("ftrl", {"lamda1": 0.1}),
    ("signum", {"wd_lh": 0.01}),
    ("test", {}),
    ("adamax", {}),
    ("adadelta", {}),
    ("ftml", {}),
    ("lars", {"momentum": 0.9, "eta": 0.01}),
    ("lamb", {"lower_bound": 0.1, "upper_bound": 2.0}),
]
lr = mx.lr_scheduler
SCHEDULES: dict[str, Callable[[], Any]] = {
    "factor": lambda: lr.FactorScheduler(7, 0.5, base_lr=0.1),
    "warm": lambda: lr.FactorScheduler(7, 0.5, base_lr=0.1, warmup_steps=5, warmup_begin_lr=0.01),
    "steps": lambda: lr.MultiFactorScheduler([9, 30], 0.5, base_lr=0.1),
    "poly": lambda: lr.PolyScheduler(60, base_lr=0.1, pwr=1, final_lr=0.01),
    "cosine": lambda: lr.CosineScheduler(
        60, base_lr=0.1, warmup_steps=4, warmup_begin_lr=0.05, warmup_mode="constant"
    ),
}


class Inverse:
    """A schedule of the program."""

    def __init__(self, base_lr: float) -> None:
        self.base_lr = base_lr

    def __call__(self, num_update: int) -> float:
        return self.base_lr / (1 + num_update // 5)


def compared(make: Callable[[], Any], keys: list[Any]) -> float:
    """Return the difference of the weights that both libraries train."""
    theirs = mx.kv.create("local")
    theirs.set_optimizer(make())
    with ncclkv.mxnet.create("local") as kv:
        kv.set_optimizer(make())
        return difference(trained(theirs, keys, [0, 1]), trained(kv, keys, [0, 1]))


@pytest.mark.parametrize("keys", [NAMES, NUMBERS], ids=["names", "numbers"])
@pytest.mark.parametrize(("name", "arguments"), OPTIMIZERS)
def test_numbers_are_those_of_mxnet(name: str, arguments: dict[str, Any], keys: list[Any]) -> None:
    assert compared(lambda: named(name, learning_rate=0.05, **arguments), keys) < 1e-6


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_schedules_are_those_of_mxnet(name: str, schedule: str) -> None:
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    assert (
        compared(lambda: named(name, lr_scheduler=SCHEDULES[schedule](), **momentum), NAMES) < 1e-6
    )


def replaced() -> Any:
    """Return an optimizer whose rate replaces the begin of the decay, not the warm-up's end."""
    schedule = lr.FactorScheduler(7, 0.5, base_lr=0.2, warmup_steps=5)
    return named("sgd", learning_rate=0.1, lr_scheduler=schedule)


def continued() -> Any:
    """Return an optimizer whose schedule has counted."""
    schedule = lr.MultiFactorScheduler([3, 40], 0.5, base_lr=0.2)
    schedule(10)
    return named("sgd", lr_scheduler=schedule)


def with_function() -> Any:
    made = named("sgd")
    made.lr_scheduler = lambda num_update: 0.1 / num_update
    return made


@pytest.mark.parametrize("make", [replaced, continued, with_function])
def test_schedules_that_ncclkv_does_not_have(make: Callable[[], Any]) -> None:
    assert compared(make, NAMES) < 1e-6


def test_schedules_are_compared_and_saved_by_their_arguments() -> None:
    with ncclkv.mxnet.create("local") as kv:
        kv.set_optimizer(mx.optimizer.SGD(lr_scheduler=SCHEDULES["cosine"]()))
        wanted = ncclkv.optimizer.CosineScheduler(60, 0.1, 0.0, 4, 0.05, "constant")
        assert kv.optimizer.lr_scheduler == wanted


def test_float16_with_master_copies() -> None:
    weights = []
    for kv in (mx.kv.create("local"), ncclkv.mxnet.create("local")):
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1e-4, multi_precision=True))
        out = mx.nd.ones((2,), dtype="float16")
        kv.init(1, out)
        for _ in range(10):
            kv.pushpull(1, mx.nd.ones((2,), dtype="float16"), out=out)
        weights.append(out.asnumpy().tolist())
        kv.barrier() if hasattr(kv, "barrier") else kv._barrier()
    assert weights[0] == weights[1] == [0.9990234375] * 2


def test_changes_are_followed() -> None:
    """A program changes numbers, factors and the schedule of MXNet's optimizer."""

    def changes(optimizer: Any) -> Callable[[int], None]:
        def change(step: int) -> None:
            if step == 10:
                optimizer.set_learning_rate(0.01)
            elif step == 15:
                optimizer.wd, optimizer.clip_gradient = 0.1, 0.3
            elif step == 20:
                optimizer.rescale_grad = 0.25
                optimizer.set_lr_mult({"fc_weight": 0.1})
            elif step == 25:
                optimizer.wd_mult["fc_bias"] = 5.0
            elif step == 30:
                optimizer.clip_gradient = None
                optimizer.lr_scheduler = lr.FactorScheduler(5, 0.5, base_lr=0.2)

        return change

    weights = []
    for kv in (mx.kv.create("local"), ncclkv.mxnet.create("local")):
        optimizer = named("sgd", learning_rate=0.05, momentum=0.5)
        kv.set_optimizer(optimizer)
        weights.append(trained(kv, NAMES, [0], changes(optimizer)))
        rate = optimizer.learning_rate
    assert difference(*weights) < 1e-6
    assert rate == 0.2 * 0.5**9


OWN = [
    ("adam", {"beta1": 0.5, "beta2": 0.9, "epsilon": 0.1}),
    ("rmsprop", {"gamma1": 0.5, "clip_weights": 0.2}),
    ("adagrad", {"float_stable_eps": 0.5}),
    ("ftml", {"beta1": 0.3}),
]


@pytest.mark.parametrize(("name", "numbers"), OWN)
def test_changes_of_an_optimizers_own_numbers_are_followed(
    name: str, numbers: dict[str, float]
) -> None:
    weights = []
    for kv in (mx.kv.create("local"), ncclkv.mxnet.create("local")):
        optimizer = named(
            name, learning_rate=0.05, **({"clip_weights": 1.0} if name == "rmsprop" else {})
        )
        kv.set_optimizer(optimizer)

        def change(step: int, optimizer: Any = optimizer) -> None:
            if step == 20:
                vars(optimizer).update(numbers)

        weights.append(trained(kv, NAMES, [0], change))
    assert difference(*weights) < 1e-6


def test_a_changed_momentum_is_refused_before_the_push() -> None:
    optimizer = mx.optimizer.SGD(learning_rate=0.5, momentum=0.9)
    with ncclkv.mxnet.create("local") as kv:
        kv.set_optimizer(optimizer)
        kv.init("w", mx.nd.zeros((2,)))
        optimizer.momentum = 0.5
        with pytest.raises(ReadOnlyAttribute, match=r"momentum .* give it to set_optimizer"):
            kv.push("w", mx.nd.ones((2,)))
        optimizer.momentum = 0.9
        kv.push("w", mx.nd.ones((2,)))
        assert kv.pull("w").tolist() == [-0.5, -0.5]


def test_a_traceback_shows_the_program_alone() -> None:
    optimizer = mx.optimizer.SGD(momentum=0.9)
    with ncclkv.mxnet.create("local") as kv:
        kv.set_optimizer(optimizer)
        kv.init("w", mx.nd.zeros((2,)))
        optimizer.momentum = 0.5
        with pytest.raises(ReadOnlyAttribute) as caught:
            kv.pushpull("w", mx.nd.ones((2,)))
    shown = [each.filename for each in traceback.extract_tb(caught.value.__traceback__)]
    assert shown[0] == __file__
    assert len(shown) == (1 if sys.version_info >= (3, 11) else 2)


@pytest.mark.parametrize("reads", [False, True], ids=["", "reads"])
@pytest.mark.parametrize("schedule", ["factor", "warm", "steps", "poly", "own"])
def test_changes_of_a_schedule_are_followed(schedule: str, reads: bool) -> None:
    weights = []
    for kv in (mx.kv.create("local"), ncclkv.mxnet.create("local")):
        optimizer = named(
            "sgd", lr_scheduler=Inverse(0.1) if schedule == "own" else SCHEDULES[schedule]()
        )
        kv.set_optimizer(optimizer)

        def change(step: int, optimizer: Any = optimizer) -> None:
            if step in (12, 20):
                optimizer.lr_scheduler.base_lr *= 3.0
            if reads:
                assert optimizer.learning_rate > 0

        weights.append(trained(kv, NAMES, [0], change))
    assert difference(*weights) < 1e-6


def test_ranks_that_are_threads_may_share_a_schedule() -> None:
    schedule = SCHEDULES["factor"]()

    def body() -> Any:
        with ncclkv.mxnet.create("dist_sync") as kv:
            kv.set_optimizer(mx.optimizer.SGD(lr_scheduler=schedule))
            return trained(kv, NAMES, [kv.rank])

    theirs = mx.kv.create("local")
    theirs.set_optimizer(mx.optimizer.SGD(lr_scheduler=SCHEDULES["factor"]()))
    expected = trained(theirs, NAMES, [0, 1])
    for weights in ncclkv.testing.run_ranks(2, body):
        assert difference(expected, weights) < 1e-6


def test_its_learning_rate_is_that_of_the_last_update() -> None:
    optimizer = mx.optimizer.SGD(lr_scheduler=lr.FactorScheduler(1, 0.5, base_lr=1.0))
    with ncclkv.mxnet.create("local") as kv:
        kv.set_optimizer(optimizer)
        kv.init("w", mx.nd.zeros((2,)))
        for _ in range(3):
            kv.push("w", mx.nd.ones((2,)))
        assert optimizer.learning_rate == kv.optimizer.learning_rate == 0.25


@pytest.mark.parametrize("name", ["DCASGD", "SGLD", "LBSGD", "GroupAdaGrad"])
def test_others_are_refused_with_the_way_out(name: str) -> None:
    optimizer = mx.optimizer.create(name)
    words = (
        f"set_optimizer: ncclkv has no optimizer {name}; run MXNet's own, on the store by "
        "kv.set_updater(mx.optimizer.get_updater(optimizer)), or on each rank by"
    )
    with ncclkv.mxnet.create("local") as kv, pytest.raises(NotSupported, match=re.escape(words)):
        kv.set_optimizer(optimizer)


def test_a_class_of_the_program_is_refused() -> None:
    class SGD(mx.optimizer.SGD):  # type: ignore[misc]
        pass

    with ncclkv.mxnet.create("local") as kv, pytest.raises(NotSupported, match="no optimizer SGD"):
        kv.set_optimizer(SGD())


@pytest.mark.parametrize("keys", [NAMES, NUMBERS], ids=["names", "numbers"])
@pytest.mark.parametrize("name", ["dcasgd", "adam", "nadam", "sgd"])
def test_optimizers_of_mxnet_run_on_the_store(name: str, keys: list[Any]) -> None:
    theirs = mx.kv.create("local")
    theirs.set_optimizer(named(name))
    with ncclkv.mxnet.create("local") as kv:
        kv.set_updater(mx.optimizer.get_updater(named(name)))
        assert difference(trained(theirs, keys, [0, 1]), trained(kv, keys, [0, 1])) < 1e-6


def test_an_updater_gets_ndarrays() -> None:
    seen = []

    def update(key: Any, input: Any, stored: Any) -> None:
        seen.append((key, type(input), type(stored), stored.shape))
        stored[:] += 2 * input

    with ncclkv.mxnet.create("local") as kv:
        kv.set_updater(update)
        kv.init("w", mx.nd.ones((2, 3)))
        kv.push("w", mx.nd.ones((2, 3)))
        assert kv.pull("w").tolist() == np.full((2, 3), 3).tolist()
    assert seen == [("w", mx.nd.NDArray, mx.nd.NDArray, (2, 3))]


def test_an_updaters_exception_leaves_push() -> None:
    def update(key: Any, input: Any, stored: Any) -> None:
        mx.nd.dot(input, stored).wait_to_read()

    with ncclkv.mxnet.create("local") as kv:
        kv.set_updater(update)
        kv.init("w", mx.nd.ones((2, 3)))
        with pytest.raises(mx.MXNetError) as raised:
            kv.push("w", mx.nd.ones((2, 3)))
        assert "in the updater, at key 'w' on rank 0" in str(
            getattr(raised.value, "__notes__", raised.value)
        )


def test_a_store_of_numpy_arrays_names_the_way_out() -> None:
    with ncclkv.create("local") as kv:
        with pytest.raises(UsageError) as raised:
            kv.set_optimizer(mx.optimizer.SGD())
        assert str(raised.value) == (
            "rank 0 of 1: set_optimizer takes an optimizer of ncclkv, not MXNet's SGD; after "
            "`import ncclkv.mxnet` the store of ncclkv.mxnet.create('dist_sync') takes MXNet's, or "
            "make one of ncclkv by ncclkv.optimizer.create('sgd', learning_rate=0.1)"
        )
        words = "set_updater: MXNet's Updater updates NDArrays, and this store has NumPy arrays; "
        with pytest.raises(UsageError, match=re.escape(words)):
            kv.set_updater(mx.optimizer.get_updater(mx.optimizer.SGD()))


def test_an_optimizer_is_no_updater() -> None:
    with ncclkv.mxnet.create("local") as kv, pytest.raises(UsageError, match="call set_optimizer"):
        kv.set_updater(mx.optimizer.SGD())
