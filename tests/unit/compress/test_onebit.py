"""The codec 1bit: MXNet's words, and the values that MXNet was seen to send."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.compress.onebit import OneBit

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")


def pushed(codec: OneBit, residual: np.ndarray, gradients: list[float]) -> list[float]:
    """Return what a push sends."""
    payload = np.empty(codec.nbytes(len(gradients)), np.uint8)
    counts, out = np.empty(len(gradients), np.uint16), np.empty(len(gradients), np.float32)
    codec.encode(np.array(gradients, np.float32), residual, payload)
    codec.count_sum([payload], counts)
    codec.finish(counts, 1, out)
    return list(out.tolist())


def test_pushes_recorded_from_mxnet() -> None:
    codec, residual = OneBit(0.0), np.zeros(5, np.float32)
    assert pushed(codec, residual, [2, 0.3, 0, -0.3, -2]) == [1, 1, -1, -1, -1]
    assert pushed(codec, residual, [0] * 5) == [1, -1, 1, 1, -1]
    assert pushed(codec, residual, [0] * 5) == [-1, 1, -1, -1, -1]
    assert pushed(codec, residual, [-2] * 5) == [-1] * 5


def test_the_first_element_has_the_most_significant_bit() -> None:
    for place in range(8):
        gradients, payload = np.zeros(40, np.float32), np.empty(8, np.uint8)
        gradients[32 + place] = 1
        OneBit().encode(gradients, np.zeros(40, np.float32), payload)
        assert payload.tolist() == [0, 0, 0, 0, 0x80 >> place, 0, 0, 0]


def test_an_element_at_the_threshold_is_not_above() -> None:
    assert pushed(OneBit(0.5), np.zeros(2, np.float32), [0.5, 0.75]) == [-1, 1]


def test_residuals_beyond_4_are_counted() -> None:
    payload = np.empty(4, np.uint8)
    gradients = np.array([5, 5.5, -5, -6], np.float32)
    assert OneBit().encode(gradients, np.zeros(4, np.float32), payload) == 2


@pytest.mark.parametrize(
    ("senders", "width"), [(1, 2), (3, 2), (4, 4), (15, 4), (16, 8), (255, 8), (256, 16)]
)
def test_counts_have_the_least_width(senders: int, width: int) -> None:
    assert OneBit().width(senders) == width
