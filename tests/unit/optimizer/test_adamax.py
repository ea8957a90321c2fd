"""The optimizer Adamax: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np

from ncclkv.optimizer import Adamax
from tests.optimizers.cases import OptimizerCases, Run


class TestAdamax(OptimizerCases):
    name = "adamax"


def test_gradients_of_zero_make_no_step() -> None:
    run = Run(Adamax(learning_rate=0.5), np.ones(3), np.dtype(np.float32))
    assert run.step(np.array([0.0, 2.0, np.nan])).tolist()[:2] == [1.0, 0.5]
    assert run.step(np.array([0.0, 0.0, 0.0]))[0] == 1
    assert np.isnan(run.weights[2])
