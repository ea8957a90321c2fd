"""The optimizer Test: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np

from ncclkv import optimizer
from tests.optimizers.cases import OptimizerCases, Run


class TestTest(OptimizerCases):
    name = "test"


def test_the_state_is_a_copy_of_the_weights() -> None:
    run = Run(optimizer.Test(rescale_grad=2.0, wd=1.0), np.ones(2), np.dtype(np.float64))
    assert run.step(np.array([3.0, -4.0])).tolist() == [7.0, -7.0]
    assert run.states[0].tolist() == [7.0, -7.0]
