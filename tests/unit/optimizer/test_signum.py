"""The optimizer Signum: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.optimizer import Signum, State
from tests.optimizers.cases import OptimizerCases, Run


class TestSignum(OptimizerCases):
    name = "signum"


def test_momentum_decides_whether_there_is_a_state() -> None:
    assert Signum(momentum=0.0).states == ()
    optimizer = Signum()
    assert optimizer.states == (State("momentum"),)
    with pytest.raises(AttributeError):
        optimizer.momentum = 0.0  # type: ignore[misc]


def test_steps_have_one_size() -> None:
    for momentum in (0.0, 0.5):
        optimizer = Signum(learning_rate=0.5, momentum=momentum)
        run = Run(optimizer, np.zeros(4), np.dtype(np.float32))
        found = run.step(np.array([1e-9, -7.0, 0.0, np.nan]))
        np.testing.assert_array_equal(found, [-0.5, 0.5, 0.0, np.nan])


def test_both_decays_shrink_the_weights_without_a_momentum() -> None:
    optimizer = Signum(learning_rate=0.5, momentum=0.0, wd=0.25, wd_lh=0.5)
    run = Run(optimizer, np.array([8.0]), np.dtype(np.float64))
    assert run.step(np.array([0.0])).tolist() == [8 * (1 - 0.5 * 0.75)]


def test_without_a_momentum_factor_and_bound_have_no_effect() -> None:
    optimizer = Signum(learning_rate=0.5, momentum=0.0, rescale_grad=-2.0, clip_gradient=0.5)
    assert Run(optimizer, np.zeros(1), np.dtype(np.float64)).step(np.ones(1)).tolist() == [-0.5]


def test_the_momentum_is_a_mean_of_the_negative_gradients() -> None:
    run = Run(Signum(momentum=0.75, wd=0.5), np.array([4.0]), np.dtype(np.float64))
    run.step(np.array([6.0]))
    assert run.states[0].tolist() == [-0.25 * (6 + 0.5 * 4)]
