"""The optimizer LARS: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.optimizer import LARS, FactorScheduler, State
from tests.optimizers.cases import OptimizerCases, Run


class TestLARS(OptimizerCases):
    name = "lars"


def test_momentum_has_a_state_only_if_it_is_not_0() -> None:
    assert LARS().states == ()
    assert LARS(momentum=0.5).states == (State("momentum"),)


def test_the_rate_is_adapted_to_both_norms() -> None:
    run = Run(LARS(learning_rate=0.5, eta=0.25, wd=0.5), np.array([3.0, 4]), np.dtype(np.float64))
    # |w| = 5, |g| = 10: the rate is 0.5 * 0.25 * 5 / (10 + 0.5 * 5), and g + wd * w is (7.5, 10).
    assert run.step(np.array([6.0, 8])).tolist() == [3 - 0.05 * 7.5, 4 - 0.05 * 10]


@pytest.mark.parametrize("wrong", ["weights", "gradients"])
def test_the_rate_is_the_learning_rate_if_a_norm_is_0(wrong: str) -> None:
    first = np.zeros(2) if wrong == "weights" else np.array([3.0, 4])
    given = np.zeros(2) if wrong == "gradients" else np.array([3.0, 4])
    run = Run(LARS(learning_rate=0.5, eta=0.25, wd=0.5), first, np.dtype(np.float64))
    assert run.step(given).tolist() == (first - 0.5 * (given + 0.5 * first)).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_smallest_gradients_are_not_divided_by(dtype: type) -> None:
    """Give gradients over whose norm the rate would be infinite in float32."""
    run = Run(LARS(learning_rate=0.5, eta=0.25), np.full(3000, 2.0, dtype), np.dtype(dtype))
    given = np.zeros(3000, dtype)
    given[:2] = 2.0**-140
    assert set(run.step(given).tolist()) == {2.0}


def test_names_of_batch_norm_and_biases_are_not_adapted() -> None:
    optimizer = LARS(eta=0.5, param_idx2name={1: "bn_gamma", 2: "fc_weight", 3: "fc_bias"})
    keys = [1, 2, 3, 4, "bn_beta", "fc_bias", "fc_weight"]
    assert [optimizer.scalars(key, 1)[2] for key in keys] == [-1, 0.5, -1, 0.5, -1, -1, 0.5]
    assert optimizer.wd_mult == {"bn_gamma": 0.0, "fc_bias": 0.0}


def test_the_momentum_follows_a_schedule() -> None:
    halved = FactorScheduler(step=2, factor=0.5, base_lr=1.0)
    for corrected in (True, False):
        lars = LARS(momentum=0.5, lr_scheduler=halved, momentum_correction=corrected)
        found = [lars.snapshot(number).scalars("w", number)[:2] for number in range(1, 6)]
        rates = [halved(number) for number in range(1, 6)]
        before = [rates[0], *rates[:-1]]
        both = zip(rates, before, strict=True)
        momenta = [0.5 * (now / last if corrected else 1) for now, last in both]
        assert found == list(zip(rates, momenta, strict=True))
        assert len(set(momenta)) == 1 + corrected
