"""The optimizer Ftrl: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.optimizer import Ftrl
from tests.optimizers.cases import OptimizerCases, Run


class TestFtrl(OptimizerCases):
    name = "ftrl"


def test_small_sums_give_weights_of_zero() -> None:
    run = Run(Ftrl(lamda1=2.0), np.zeros(3), np.dtype(np.float64))
    given = np.array([1.0, 4.0, np.nan])
    found = run.step(given)
    assert found[0] == 0
    # (2 - 4) / ((1 + 4) / 0.1)
    assert found[1] == pytest.approx(-0.04)
    assert np.isnan(found[2])


@pytest.mark.parametrize(
    ("dtype", "rate"), [("float64", 0.0), ("float32", 0.0), ("float32", 1e-60), ("float16", 1e-60)]
)
def test_a_learning_rate_of_zero_changes_nothing(dtype: str, rate: float) -> None:
    optimizer = Ftrl()
    run = Run(optimizer, np.array([1.0, -2.0]), np.dtype(dtype))
    run.step(np.array([3.0, 4.0]))
    before = [run.weights.copy(), *(state.copy() for state in run.states)]
    optimizer.learning_rate = rate
    run.step(np.array([5.0, 6.0]))
    for array, expected in zip([run.weights, *run.states], before, strict=True):
        assert array.tobytes() == expected.tobytes()
