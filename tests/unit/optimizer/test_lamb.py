"""The optimizer LAMB: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np

from ncclkv.optimizer import LAMB, State
from tests.optimizers.cases import OptimizerCases, Run


class TestLAMB(OptimizerCases):
    name = "lamb"


def test_the_first_step_is_as_long_as_the_rate_times_the_weights() -> None:
    run = Run(LAMB(learning_rate=0.5), np.array([3.0, 4, 0]), np.dtype(np.float64))
    assert LAMB.states == (State("mean"), State("variance"))
    step = run.step(np.array([1e9, -1e9, 1e9])) - [3, 4, 0]
    np.testing.assert_allclose(step, 0.5 * 5 / np.sqrt(3) * np.array([-1, 1, -1]), rtol=1e-12)


def test_bounds_of_the_norm_of_the_weights() -> None:
    for bounds, norm in (({"lower_bound": 8.0}, 8), ({"upper_bound": 2.0}, 2), ({}, 5)):
        run = Run(LAMB(learning_rate=0.5, **bounds), np.array([3.0, 4]), np.dtype(np.float64))
        step = run.step(np.array([1e9, 1e9])) - [3, 4]
        np.testing.assert_allclose(step, -0.5 * norm / np.sqrt(2), rtol=1e-12)


def test_the_rate_is_the_learning_rate_if_a_norm_is_0() -> None:
    run = Run(LAMB(learning_rate=0.5, epsilon=0.0), np.zeros(2), np.dtype(np.float64))
    np.testing.assert_allclose(run.step(np.array([3.0, -4])), [-0.5, 0.5], rtol=1e-12)


def test_an_element_without_gradients_has_no_direction_also_without_epsilon() -> None:
    run = Run(LAMB(epsilon=0.0), np.ones(2), np.dtype(np.float32))
    found = run.step(np.array([0.0, 1]))
    assert found[0] == 1
    assert found[1] < 1
