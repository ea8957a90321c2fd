"""The optimizer AdamW: its arguments, and its weights against the model's and torch's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.optimizer import AdamW
from tests.optimizers.cases import OptimizerCases, Run
from tests.optimizers.settings import STEPS, gradient, weights


class TestAdamW(OptimizerCases):
    name = "adamw"
    in_mxnet = False


def test_torchs_weights() -> None:
    """Compare each of 50 steps with torch in float64, to 1e-13."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    parameter = torch.nn.Parameter(torch.tensor(weights()))
    numbers = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}
    reference = torch.optim.AdamW([parameter], **numbers)
    ours = AdamW(learning_rate=0.01, beta1=0.8, beta2=0.9, epsilon=1e-3, wd=0.1)
    run = Run(ours, weights(), np.dtype(np.float64))
    for step in range(1, STEPS + 1):
        parameter.grad = torch.tensor(gradient(step))
        reference.step()
        found = run.step(gradient(step))
        np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=0, atol=1e-13)


def test_the_defaults_are_torchs() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.optim.AdamW([torch.zeros(1)]).defaults
    ours = AdamW()
    assert (ours.learning_rate, ours.wd) == (theirs["lr"], theirs["weight_decay"])
    assert ((ours.beta1, ours.beta2), ours.epsilon) == (theirs["betas"], theirs["eps"])
