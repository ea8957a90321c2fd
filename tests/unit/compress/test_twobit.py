"""The codec 2bit: MXNet's words, and the values that MXNet was seen to send."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.compress.twobit import TwoBit

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")


def pushed(codec: TwoBit, residual: np.ndarray, *gradients: list[float]) -> list[list[float]]:
    """Push arrays one after another; return what each sends."""
    sent = []
    for each in gradients:
        payload = np.empty(codec.nbytes(len(each)), np.uint8)
        counts, out = np.empty(len(each), np.uint16), np.empty(len(each), np.float32)
        codec.encode(np.array(each, np.float32), residual, payload)
        codec.count_sum([payload], counts)
        codec.finish(counts, 1, out)
        sent.append(out.tolist())
    return sent


def test_pushes_recorded_from_mxnet() -> None:
    sent = pushed(
        TwoBit(0.5),
        np.zeros(5, np.float32),
        [0.6, -0.6, 0.3, -0.3, 2],
        [0, 0, 0, 0, 0],
        [0.2, -0.2, 0.2, -0.2, 0.2],
    )
    assert sent == [[0.5, -0.5, 0, 0, 0.5], [0, 0, 0, 0, 0.5], [0, 0, 0.5, -0.5, 0.5]]


def test_a_repeated_push_recorded_from_mxnet() -> None:
    sent = pushed(TwoBit(0.5), np.zeros(1, np.float32), *[[0.3]] * 5)
    assert np.cumsum(sent).tolist() == [0, 0.5, 0.5, 1, 1.5]


@pytest.mark.parametrize(
    ("place", "positive", "negative"),
    [(0, 0xC0, 0x80), (1, 0x30, 0x20), (2, 0x0C, 0x08), (3, 0x03, 0x02)],
)
def test_mxnets_masks(place: int, positive: int, negative: int) -> None:
    for sign, mask in ((1, positive), (-1, negative)):
        gradients, payload = np.zeros(21, np.float32), np.empty(8, np.uint8)
        gradients[16 + place] = sign
        TwoBit().encode(gradients, np.zeros(21, np.float32), payload)
        assert payload.tolist() == [0, 0, 0, 0, mask, 0, 0, 0]


def test_code_01_is_nothing() -> None:
    counts, out = np.empty(4, np.uint16), np.empty(4, np.float32)
    TwoBit().count_sum([np.array([0b01_00_11_10, 0, 0, 0], np.uint8)], counts)
    TwoBit().finish(counts, 1, out)
    assert out.tolist() == [0, 0, 0.5, -0.5]
    assert not np.signbit(out[:2]).any()


def test_an_element_at_the_threshold_is_sent() -> None:
    assert pushed(TwoBit(0.5), np.zeros(2, np.float32), [0.5, -0.5]) == [[0.5, -0.5]]


def test_nan_stays_in_the_residual_and_is_never_sent() -> None:
    residual = np.zeros(2, np.float32)
    assert pushed(TwoBit(), residual, [np.nan, 0], [1, 0]) == [[0, 0], [0, 0]]
    assert np.isnan(residual).tolist() == [True, False]


def test_residuals_beyond_the_threshold_are_counted() -> None:
    codec, residual = TwoBit(0.5), np.zeros(4, np.float32)
    payload = np.empty(4, np.uint8)
    # One residual is the threshold itself.
    assert codec.encode(np.array([1.0, 1.25, -9, 0.1], np.float32), residual, payload) == 2
    assert residual.tolist() == [0.5, 0.75, -8.5, np.float32(0.1)]


@pytest.mark.parametrize(
    ("senders", "width"), [(1, 2), (2, 4), (7, 4), (8, 8), (127, 8), (128, 16), (32_767, 16)]
)
def test_counts_have_the_least_width(senders: int, width: int) -> None:
    assert TwoBit().width(senders) == width
