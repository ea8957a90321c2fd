"""The codec topk: how much a payload holds, and what a sum of senders is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ncclkv.compress.topk import TopK
from ncclkv.errors import NotSupported
from ncclkv.kernels.host.largest import add_largest
from tests.codecs import numbers, same

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

PUSHES = 30


def sum_of(payloads: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the sum of payloads, added in their order."""
    total = np.zeros(count, np.float32)
    for payload in payloads:
        add_largest(payload, total)
    return total


@pytest.mark.parametrize(
    ("ratio", "count", "kept"),
    [(0.01, 1, 1), (0.01, 149, 1), (0.01, 150, 2), (0.01, 16 << 20, 167_772), (1, 7, 7),
     (0.9, 2, 2), (1e-9, 1000, 1), (0.01, 0, 0)],
)  # fmt: skip
def test_a_share_of_the_gradients_is_sent_and_one_at_least(
    ratio: float, count: int, kept: int
) -> None:
    assert TopK(ratio).kept(count) == kept
    assert TopK(ratio).nbytes(count) == 8 * kept


def test_a_key_that_indices_cannot_name_is_refused() -> None:
    assert TopK(1e-9).nbytes(2**31 - 1) == 16
    with pytest.raises(NotSupported) as error:
        TopK(1e-9).nbytes(2**31)
    assert str(error.value) == (
        "topk cannot name 2,147,483,648 elements of a key in 31 bits; split the key, or give the "
        "type 'fp16'"
    )


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("senders", [1, 2, 3, 4])
def test_senders_are_added_in_their_order(senders: int, special: bool) -> None:
    codec, rng, count = TopK(0.3), np.random.default_rng(senders), 1000
    residuals = np.zeros((senders, count), np.float32)
    for _ in range(PUSHES):
        payloads, expected = [], np.zeros(count, np.float32)
        for residual in residuals:
            gradients = numbers(rng, count, special)
            with np.errstate(all="ignore"):
                before = residual + gradients
            payloads.append(np.empty(codec.nbytes(count), np.uint8))
            codec.encode(gradients, residual, payloads[-1])
            sent = payloads[-1][:1200].view(np.int32)
            assert sent.size == 300
            with np.errstate(all="ignore"):
                expected[sent] += before[sent]
        out = sum_of(payloads, count)
        assert same(out, expected)


def test_all_that_is_pushed_is_sent_in_the_end() -> None:
    codec, gradients = TopK(0.25), np.array([4, 1, 2, 8], np.float32)
    residual, total = np.zeros((2, 4), np.float32)
    payload = np.empty(codec.nbytes(4), np.uint8)
    for _ in range(PUSHES):
        codec.encode(gradients, residual, payload)
        out = sum_of([payload], 4)
        assert np.count_nonzero(out) == 1
        total += out
    assert (total + residual).tolist() == (PUSHES * gradients).tolist()
    assert (residual < 8 * 8).all()


def test_all_gradients_of_a_ratio_of_1_leave_no_residual() -> None:
    codec, residual = TopK(1.0), np.ones(50, np.float32)
    gradients = np.arange(50, dtype=np.float32)
    payload = np.empty(codec.nbytes(50), np.uint8)
    codec.encode(gradients, residual, payload)
    out = sum_of([payload], 50)
    assert out.tolist() == (gradients + 1).tolist()
    assert not residual.any()
