"""Schedules, compared with the numbers of MXNet 1.9.1."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ncclkv
from ncclkv.errors import UsageError
from ncclkv.optimizer import (
    SGD,
    CosineScheduler,
    FactorScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)
from ncclkv.optimizer.restore import from_config, set_config
from ncclkv.optimizer.schedule import describe, from_description

# Arguments are those of mxnet.lr_scheduler; rates are its results for updates 1 to 13.
MXNET: list[tuple[Any, list[float]]] = [
    (
        FactorScheduler(step=3, factor=0.7, stop_factor_lr=0.02, base_lr=0.1),
        [
            0.1,
            0.1,
            0.1,
            0.06999999999999999,
            0.06999999999999999,
            0.06999999999999999,
            0.048999999999999995,
            0.048999999999999995,
            0.048999999999999995,
            0.0343,
            0.0343,
            0.0343,
            0.024009999999999997,
        ],
    ),
    (
        FactorScheduler(step=4, factor=0.5, base_lr=0.3, warmup_steps=5, warmup_begin_lr=0.1),
        [0.14, 0.18, 0.22, 0.26, 0.15, 0.15, 0.15, 0.15, 0.075, 0.075, 0.075, 0.075, 0.0375],
    ),
    (
        FactorScheduler(
            step=4,
            factor=0.5,
            base_lr=0.3,
            warmup_steps=5,
            warmup_begin_lr=0.1,
            warmup_mode="constant",
        ),
        [0.1, 0.1, 0.1, 0.1, 0.15, 0.15, 0.15, 0.15, 0.075, 0.075, 0.075, 0.075, 0.0375],
    ),
    (
        MultiFactorScheduler(step=[2, 5, 6], factor=0.3, base_lr=0.7),
        [0.7, 0.7, 0.21, 0.21, 0.21, 0.063, 0.0189, 0.0189, 0.0189, 0.0189, 0.0189, 0.0189, 0.0189],
    ),
    (
        MultiFactorScheduler(
            step=[2, 5, 9], factor=0.3, base_lr=0.7, warmup_steps=4, warmup_begin_lr=0.05
        ),
        [
            0.21249999999999997,
            0.37499999999999994,
            0.5375,
            0.21,
            0.21,
            0.063,
            0.063,
            0.063,
            0.063,
            0.0189,
            0.0189,
            0.0189,
            0.0189,
        ],
    ),
    (
        PolyScheduler(max_update=10, base_lr=0.3, pwr=2, final_lr=0.01),
        [
            0.2449,
            0.19560000000000002,
            0.15209999999999999,
            0.11439999999999999,
            0.08249999999999999,
            0.056400000000000006,
            0.03610000000000001,
            0.021599999999999994,
            0.012899999999999998,
            0.01,
            0.01,
            0.01,
            0.01,
        ],
    ),
    (
        PolyScheduler(max_update=10, base_lr=0.3, pwr=1.5, warmup_steps=3, warmup_begin_lr=0.1),
        [
            0.16666666666666669,
            0.23333333333333334,
            0.3,
            0.23806802565579896,
            0.1811044831561107,
            0.12958781931744934,
            0.0841697576624542,
            0.04581621289927275,
            0.016198477414681174,
            0.0,
            0.0,
            0.0,
            0.0,
        ],
    ),
    (
        CosineScheduler(max_update=10, base_lr=0.3, final_lr=0.01),
        [
            0.29290319486279726,
            0.27230746418436735,
            0.2402288615824086,
            0.19980746418436737,
            0.155,
            0.11019253581563263,
            0.0697711384175914,
            0.03769253581563264,
            0.01709680513720274,
            0.01,
            0.01,
            0.01,
            0.01,
        ],
    ),
    (
        CosineScheduler(max_update=10, base_lr=0.3, warmup_steps=3, warmup_begin_lr=0.1),
        [
            0.16666666666666669,
            0.23333333333333334,
            0.3,
            0.28514533018536287,
            0.24352347027881002,
            0.18337814009344713,
            0.11662185990655284,
            0.05647652972118997,
            0.014854669814637143,
            0.0,
            0.0,
            0.0,
            0.0,
        ],
    ),
    (
        FactorScheduler(2),
        [0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01],
    ),
    (
        CosineScheduler(6),
        [
            0.009330127018922194,
            0.0075,
            0.005,
            0.0025000000000000014,
            0.0006698729810778065,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
        ],
    ),
]

SCHEDULES = [schedule for schedule, _ in MXNET]


@pytest.mark.parametrize(("schedule", "rates"), MXNET, ids=lambda x: type(x).__name__)
def test_rates_are_mxnets_to_the_last_bit(schedule: Any, rates: list[float]) -> None:
    assert [schedule(number) for number in range(1, 14)] == rates
    backwards = [schedule(number) for number in range(13, 0, -1)]
    assert backwards[::-1] == rates, "a loaded checkpoint may go back"


@given(st.lists(st.integers(1, 60), min_size=1), st.integers(1, 7), st.floats(0, 1))
def test_a_rate_depends_on_the_number_alone(numbers: list[int], step: int, factor: float) -> None:
    used = FactorScheduler(step, factor, base_lr=0.7)
    for number in numbers:
        assert used(number) == FactorScheduler(step, factor, base_lr=0.7)(number)


def test_a_long_run_costs_no_long_loop() -> None:
    constant = FactorScheduler(step=1, factor=1.0)
    assert constant(10**12) == 0.01
    assert FactorScheduler(step=1, factor=0.5)(10**12) == 1e-8


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda x: type(x).__name__)
def test_a_description_makes_an_equal_schedule(schedule: Any) -> None:
    schedule(9)
    for other in from_description(describe(schedule)), pickle.loads(pickle.dumps(schedule)):
        assert (type(other), other) == (type(schedule), schedule)
        assert other(5) == schedule(5)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(FactorScheduler, 0), "step=0 is not an int of 1 or more"),
        (partial(FactorScheduler, 2, 1.5), "factor is 1.5; give a number of at most 1"),
        (partial(FactorScheduler, 2, -0.5), "factor is -0.5; give a number of at least 0"),
        (partial(FactorScheduler, 2, base_lr="x"), "base_lr is 'x'; give a finite number"),
        (
            partial(FactorScheduler, 2, base_lr=0.1, warmup_begin_lr=0.2),
            "warmup_begin_lr is 0.2, and base_lr 0.1; give a warmup_begin_lr of at most base_lr",
        ),
        (
            partial(FactorScheduler, 2, warmup_mode="cubic"),
            "warmup_mode 'cubic' is unknown; use one of linear, constant",
        ),
        (partial(MultiFactorScheduler, []), r"step is \[\]; give a list of numbers of updates"),
        (partial(MultiFactorScheduler, 3), "step is 3; give a list of numbers of updates"),
        (
            partial(MultiFactorScheduler, [3, 2]),
            r"step is \[3, 2\]; give its numbers in increasing order",
        ),
        (partial(PolyScheduler, 3, pwr=-1), "pwr is -1; give a number of at least 0"),
        (partial(PolyScheduler, 1.5), "max_update=1.5 is not an int of 1 or more"),
        (
            partial(CosineScheduler, 3, warmup_steps=3),
            "max_update is 3, and warmup_steps 3; give a max_update above it",
        ),
    ],
)
def test_wrong_arguments_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^{reason}"):
        make()


@pytest.mark.parametrize("wrong", [0.1, "cosine", CosineScheduler, [0.1]])
def test_a_schedule_is_a_function(wrong: Any) -> None:
    with pytest.raises(UsageError, match="^lr_scheduler is .*; give a function of num_update"):
        SGD(lr_scheduler=wrong)


def test_a_learning_rate_beside_a_schedule_replaces_its_base() -> None:
    schedule = CosineScheduler(10, base_lr=0.5)
    sgd = SGD(learning_rate=0.25, lr_scheduler=schedule)
    assert sgd.lr_scheduler == CosineScheduler(10, base_lr=0.25)
    assert (sgd.learning_rate, schedule(0)) == (0.25, 0.5)
    with pytest.raises(UsageError) as caught:
        SGD(learning_rate=0.25, lr_scheduler=math.sqrt)
    assert str(caught.value) == (
        "learning_rate is 0.25 beside the lr_scheduler math.sqrt, which alone sets the rate; leave "
        "learning_rate out"
    )


def test_the_rate_of_a_schedule_cannot_be_set() -> None:
    sgd = SGD(lr_scheduler=FactorScheduler(2))
    for assign in (sgd.set_learning_rate, partial(setattr, sgd, "learning_rate")):
        with pytest.raises(UsageError) as caught:
            assign(0.5)
        assert str(caught.value) == (
            "learning_rate cannot be set to 0.5: it is that of the lr_scheduler; assign another "
            "schedule, or None, to lr_scheduler first"
        )
    sgd.lr_scheduler = None
    assert sgd.learning_rate == 0.01
    sgd.learning_rate = 0.5
    assert sgd.learning_rate == 0.5


def test_a_config_has_the_schedule_and_restores_it() -> None:
    sgd = SGD(lr_scheduler=MultiFactorScheduler([2, 5], 0.5), begin_num_update=3)
    config = sgd.config()
    assert (config["learning_rate"], config["begin_num_update"]) == (None, 3)
    assert config["lr_scheduler"] == describe(MultiFactorScheduler([2, 5], 0.5))
    assert from_config(config).config() == config
    other = SGD(learning_rate=0.5)
    plain = other.config()
    set_config(other, config)
    assert (other.config(), other.lr_scheduler) == (config, sgd.lr_scheduler)
    set_config(other, plain)
    assert (other.config(), other.learning_rate) == (plain, 0.5)


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ({"class": "Cosine"}, "lr_scheduler 'Cosine' is unknown"),
        ({"class": "CosineScheduler", "max": 3}, "lr_scheduler CosineScheduler: .*'max'"),
        ({"function": "train.rate"}, "lr_scheduler is 'train.rate', a function of the program"),
        ("train.rate", "lr_scheduler is 'train.rate', a function of the program"),
        ({"class": "CosineScheduler", "max_update": 0}, "max_update=0 is not an int of 1 or more"),
    ],
)
def test_wrong_descriptions_are_refused(description: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^{reason}"):
        from_description(description)


def test_a_repr_makes_an_equal_optimizer() -> None:
    sgd = SGD(momentum=0.5, lr_scheduler=CosineScheduler(10), begin_num_update=2)
    assert repr(sgd) == (
        "SGD(learning_rate=None, momentum=0.5, wd=0.0, rescale_grad=1.0, clip_gradient=None, "
        "lr_scheduler=CosineScheduler(max_update=10, base_lr=0.01, final_lr=0.0, warmup_steps=0, "
        "warmup_begin_lr=0.0, warmup_mode='linear'), begin_num_update=2)"
    )
    assert eval(repr(sgd)).config() == sgd.config()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_counts_for_itself(copied: Any) -> None:
    sgd = SGD(lr_scheduler=FactorScheduler(1, 0.5, base_lr=1.0))
    sgd.count_updates(3)
    other = copied(sgd)
    sgd.count_updates(4)
    assert (other.learning_rate, sgd.learning_rate) == (0.25, 0.125)


def test_a_scheduler_of_torch_drives_the_rate() -> None:
    torch = pytest.importorskip("torch")
    # torch's schedulers write to an optimizer of torch, which here holds the rate alone.
    holder = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(holder, step_size=2, gamma=0.5)
    sgd, weight = SGD(learning_rate=1.0), np.zeros(1)
    with ncclkv.create("local") as kv:
        kv.init("w", weight)
        kv.set_optimizer(sgd)
        for _ in range(5):
            (sgd.learning_rate,) = schedule.get_last_lr()
            kv.pushpull("w", np.ones(1), out=weight)
            holder.step()
            schedule.step()
    assert weight[0] == -(1 + 1 + 0.5 + 0.5 + 0.25)
