"""The optimizer AdaDelta: its arguments, and its weights against the model's and MXNet's."""

from __future__ import annotations

from ncclkv.optimizer import AdaDelta
from tests.optimizers.cases import OptimizerCases


class TestAdaDelta(OptimizerCases):
    name = "adadelta"


def test_the_learning_rate_has_no_effect() -> None:
    rows = [AdaDelta(learning_rate=rate).scalars("a", 1) for rate in (0.1, 10.0)]
    assert rows[0] == rows[1]
