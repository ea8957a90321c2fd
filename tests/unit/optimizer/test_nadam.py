"""The optimizer Nadam: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

import math

import pytest

from ncclkv.optimizer import Nadam
from tests.optimizers.cases import OptimizerCases


class TestNadam(OptimizerCases):
    name = "nadam"


def test_the_momentum_has_its_product_at_any_count() -> None:
    """Check the row of a late update, whose product of momenta is no longer multiplied out."""
    optimizer = Nadam(schedule_decay=0.5)
    # beta1 * (1 - 0.96**(t * 0.5) / 2), and a product of 0
    now, ahead = (0.9 * (1 - 0.5 * 0.96 ** (count * 0.5)) for count in (10**6, 10**6 + 1))
    assert optimizer.scalars("a", 10**6)[6:9] == (1 - now, ahead, 1.0)
    product, factors = 1.0, []
    for count in range(1, 4):
        product *= 0.9 * (1 - 0.5 * 0.96 ** (count * 0.5))
        factors.append(1 / (1 - product))
    rows = [optimizer.scalars("a", count) for count in range(1, 4)]
    momenta = [0.9 * (1 - 0.5 * 0.96 ** (count * 0.5)) for count in range(1, 4)]
    found = [row[6] / (1 - momentum) for row, momentum in zip(rows, momenta, strict=True)]
    assert found == pytest.approx(factors, rel=1e-14)


@pytest.mark.parametrize("decay", [0.05, 0.4, 1.0, 20.0, 1e300])
def test_a_late_update_takes_no_time(decay: float) -> None:
    """Check a momentum so near to 1 that the product shrinks for 1e12 updates."""
    beta1, count = 1 - 2.0**-40, 10**12
    # log(1 - x / 2) of the first updates, and beta1 in all
    first = sum(math.log1p(-0.5 * 0.96 ** (step * decay)) for step in range(1, 20_000))
    product = math.exp(first + count * math.log1p(-(2.0**-40)))
    row = Nadam(beta1=beta1, schedule_decay=decay).scalars("a", count)
    # ahead / (1 - product * ahead)
    assert row[7] == pytest.approx(beta1 / (1 - product * beta1), rel=1e-9)
