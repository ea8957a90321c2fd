"""The optimizer Adam: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.errors import UsageError
from ncclkv.optimizer import Adam, State
from tests.optimizers.cases import OptimizerCases, Run


class TestAdam(OptimizerCases):
    name = "adam"


def test_the_first_step_is_the_learning_rate_for_gradients_of_any_size() -> None:
    run = Run(Adam(learning_rate=0.5, epsilon=0.0), np.zeros(3), np.dtype(np.float64))
    np.testing.assert_allclose(run.step(np.array([1e-9, -3.0, 1e9])), [-0.5, 0.5, -0.5])
    assert Adam.states == (State("mean"), State("variance"))


def test_nan_reaches_the_weights_even_when_clipped() -> None:
    run = Run(Adam(clip_gradient=1.0), np.zeros(2), np.dtype(np.float32))
    assert np.isnan(run.step(np.array([np.nan, 1.0]))).tolist() == [True, False]


@pytest.mark.parametrize("name", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [1.0, -0.5])
def test_decays_of_means_are_below_one(name: str, value: float) -> None:
    with pytest.raises(UsageError) as caught:
        Adam(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} is {value}; give a number of at least 0 and below 1"


@pytest.mark.parametrize(("given", "meant"), [("eps", "epsilon"), ("lr", "learning_rate")])
def test_names_of_torch_are_refused_with_mxnets(given: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        Adam(**{given: 0.1})  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"Adam has no argument {given!r}; did you mean {meant!r}? Valid: learning_rate, beta1, "
        "beta2, epsilon, wd, rescale_grad, clip_gradient, lr_scheduler, begin_num_update, "
        "param_idx2name, multi_precision, clip_global_norm"
    )
