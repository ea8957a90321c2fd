"""Keys of a range that are encoded one by one, and the padding between them."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.compress.entries import Padding, encode_entries
from tests.codecs import MODELS, quantiser

ENTRIES = [(0, 3), (64, 64), (64, 165), (192, 200)]
"""An empty one among them."""
COUNT = 256


@pytest.mark.usefixtures("in_numpy_and_c")
@pytest.mark.parametrize("name", [*MODELS])
def test_padding_is_not_encoded_and_decoded_to_0(name: str) -> None:
    codec = quantiser(name)
    gradients, residual = np.full((2, COUNT), 0.75, np.float32)
    payload = np.full(codec.nbytes(COUNT), 255, np.uint8)
    gradients[100] = 9
    residuals = [residual[lo:hi] for lo, hi in ENTRIES]
    of_entries = [gradients[lo:hi] for lo, hi in ENTRIES]
    beyond = encode_entries(codec, ENTRIES, of_entries, residuals, payload)
    assert beyond == [0 if name == "1bit" else 3, 0, 1 if name == "1bit" else 101,
                      0 if name == "1bit" else 8]  # fmt: skip
    for lo, hi in ((3, 64), (165, 192), (200, COUNT)):
        assert not payload[codec.nbytes(lo) : codec.nbytes(hi)].any()
    counts, out = np.empty(COUNT, np.uint16), np.empty(COUNT, np.float32)
    codec.count_sum([payload], counts)
    codec.finish(counts, 1, out)
    for start, stop in ((0, COUNT), (32, 128), (128, 192), (200, 256)):
        Padding(ENTRIES, COUNT).clear(start, out[start:stop])
    inside = np.zeros(COUNT, np.bool_)
    for lo, hi in ENTRIES:
        inside[lo:hi] = True
    assert out.astype(np.bool_).tolist() == inside.tolist()
    assert ((residual == 0.75) == ~inside).all()
    alone = np.empty(codec.nbytes(101), np.uint8)
    codec.encode(gradients[64:165], np.full(101, 0.75, np.float32), alone)
    assert payload[codec.nbytes(64) :][: alone.size].tolist() == alone.tolist()


def test_no_entries_are_all_padding() -> None:
    assert Padding([], 5).gaps == [(0, 5)]
    assert Padding([(0, 5)], 5).gaps == []
    out = np.ones(3)
    Padding([(0, 16)], 16).clear(4, out)
    assert out.all()
