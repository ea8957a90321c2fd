"""The optimizer RMSProp: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.errors import UsageError
from ncclkv.optimizer import RMSProp
from tests.optimizers.cases import OptimizerCases, Run


class TestRMSProp(OptimizerCases):
    name = "rmsprop"

    def test_assigned_numbers_are_checked_and_take_effect(self) -> None:
        super().test_assigned_numbers_are_checked_and_take_effect()
        optimizer = RMSProp()
        with pytest.raises(AttributeError):
            optimizer.centered = True  # type: ignore[misc]


def test_the_form_decides_the_states() -> None:
    assert [each.name for each in RMSProp().states] == ["mean_square"]
    states = RMSProp(centered=True).states
    assert [each.name for each in states] == ["mean_square", "mean", "delta"]
    with pytest.raises(UsageError, match=r"^centered='yes' is not a bool; give True or False$"):
        RMSProp(centered="yes")  # type: ignore[arg-type]


def test_the_states_are_means_and_the_last_change() -> None:
    optimizer = RMSProp(learning_rate=0.5, gamma1=0.75, centered=True, epsilon=0.0)
    run = Run(optimizer, np.ones(1), np.dtype(np.float64))
    run.step(np.array([8.0]))
    # 0.5 * 8 / sqrt(16 - 4)
    change = pytest.approx(-2 / 3**0.5)
    assert [float(state[0]) for state in run.states] == [16.0, 2.0, change]
    assert run.weights[0] == 1 + run.states[2][0]


def test_equal_gradients_keep_the_weights_finite() -> None:
    """Check the centered form in float32, where rounding makes a variance of 0 negative."""
    given = np.linspace(0.5, 3.0, 101)
    run = Run(RMSProp(centered=True, epsilon=0.001), np.zeros(101), np.dtype(np.float32))
    negative = False
    for _ in range(500):
        run.step(given)
        squares, mean, _ = run.states
        negative |= bool((squares - mean * mean < 0).any())
        assert np.isfinite(run.weights).all()
    assert negative, "the case is not reached"


def test_weights_are_clipped() -> None:
    optimizer = RMSProp(learning_rate=1.0, clip_weights=0.25)
    run = Run(optimizer, np.array([0.0, 9.0]), np.dtype(np.float64))
    assert run.step(np.ones(2)).tolist() == [-0.25, 0.25]
    optimizer.clip_weights = None
    assert (run.step(np.ones(2)) < -0.5).all()
