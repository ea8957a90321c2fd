"""The optimizer Lion: its arguments, and its weights against the model's."""

from __future__ import annotations

import numpy as np

from ncclkv.optimizer import Lion
from tests.optimizers.cases import OptimizerCases, Run


class TestLion(OptimizerCases):
    name = "lion"
    in_mxnet = False


def test_steps_have_one_size_and_nan_stays() -> None:
    run = Run(Lion(learning_rate=0.5, wd=0.5), np.ones(4), np.dtype(np.float32))
    found = run.step(np.array([1e-9, -7.0, 0.0, np.nan]))
    np.testing.assert_array_equal(found, [0.25, 1.25, 0.75, np.nan])
