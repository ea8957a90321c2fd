"""The optimizer FTML: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.optimizer import FTML
from tests.optimizers.cases import OptimizerCases, Run


class TestFTML(OptimizerCases):
    name = "ftml"


@pytest.mark.parametrize(
    ("dtype", "rate"), [("float64", 0.0), ("float32", 0.0), ("float32", 1e-60), ("float16", 1e-60)]
)
def test_a_learning_rate_of_zero_changes_nothing(dtype: str, rate: float) -> None:
    optimizer = FTML()
    run = Run(optimizer, np.array([1.0, -2.0]), np.dtype(dtype))
    run.step(np.array([3.0, 4.0]))
    before = [run.weights.copy(), *(state.copy() for state in run.states)]
    optimizer.learning_rate = rate
    run.step(np.array([5.0, 6.0]))
    for array, expected in zip([run.weights, *run.states], before, strict=True):
        assert array.tobytes() == expected.tobytes()
