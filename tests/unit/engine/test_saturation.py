"""The warning of residuals that grow: when, of which keys, and with which threshold."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import ncclkv
from ncclkv.engine.saturation import EVERY, FIRST


def pushes(kv: ncclkv.KVStore, count: int, size: float) -> None:
    """Push gradients of a size for both keys."""
    for _ in range(count):
        kv.push(["w", "b"], [np.full(100, size, np.float32), np.full(3, 0.1, np.float32)])
        kv.wait()


def test_a_key_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ncclkv"), ncclkv.create("device") as kv:
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        kv.init(["w", "b"], [np.zeros(100, np.float32), np.zeros(3, np.float32)])
        pushes(kv, FIRST - 1, 3.0)
        assert not caplog.records
        pushes(kv, 1, 3.0)
        (record,) = caplog.records
        assert record.getMessage() == (
            "ncclkv: 2bit of 'w': 100 % of the residuals are beyond 0.5, and grow: an element "
            "sends at most 0.5 a push, and these gradients have a root mean square of 3; use a "
            "threshold of about 12, rescale the gradients, or use another type"
        )
        pushes(kv, 2 * EVERY, 3.0)
        assert len(caplog.records) == 1
        assert kv.gradient_compression("w")["saturated"] == 1
        assert kv.gradient_compression("b")["saturated"] == 0
        kv.set_gradient_compression({"type": "2bit", "threshold": 1.0})
        pushes(kv, FIRST, 3.0)
        assert len(caplog.records) == 2


def test_gradients_of_the_size_of_the_threshold_are_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "ncclkv"), ncclkv.create("device") as kv:
        kv.set_gradient_compression({"type": "2bit", "threshold": 3.0})
        kv.init(["w", "b"], [np.zeros(100, np.float32), np.zeros(3, np.float32)])
        pushes(kv, 2 * FIRST, 3.0)
    assert not caplog.records
