"""The optimizer NAG: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.optimizer import NAG, State
from tests.optimizers.cases import OptimizerCases, Run


class TestNAG(OptimizerCases):
    name = "nag"


def test_momentum_decides_whether_there_is_a_state() -> None:
    assert NAG().states == ()
    optimizer = NAG(momentum=0.5)
    assert optimizer.states == (State("momentum"),)
    with pytest.raises(AttributeError):
        optimizer.momentum = 0.0  # type: ignore[misc]


def test_agrees_with_torch_without_decay() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    reference = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, nesterov=True)
    run = Run(NAG(learning_rate=0.1, momentum=0.9), np.ones(1), np.dtype(np.float64))
    for step in range(10):
        parameter.grad = torch.full((1,), step - 4.5, dtype=torch.float64)
        reference.step()
        found = run.step(np.array([step - 4.5]))
        np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=0, atol=1e-13)
