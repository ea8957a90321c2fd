"""The optimizer AdaGrad: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

from tests.optimizers.cases import OptimizerCases


class TestAdaGrad(OptimizerCases):
    name = "adagrad"
