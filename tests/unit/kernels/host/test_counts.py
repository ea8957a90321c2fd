"""Counts longer than a tile, and the bits behind the last of them."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.kernels.host.counts import TILE, count_levels, pack_counts

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")


def test_each_tile_has_its_own_part_of_the_payloads() -> None:
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.uint16)
    payloads = np.random.default_rng(0).integers(0, 256, (2, 3 * TILE // 8), np.uint8)
    counts = np.empty(3 * TILE - 5, np.uint16)
    count_levels(bits, payloads, counts)
    assert np.array_equal(counts, np.unpackbits(payloads, axis=1).sum(axis=0)[: counts.size])


@pytest.mark.parametrize(("width", "last"), [(2, 0b11000000), (4, 0x30), (8, 3)])
def test_the_bits_behind_the_last_count_are_0(width: int, last: int) -> None:
    counts = np.full(TILE + 1, 3, np.uint16)
    packed = np.full(-(-counts.size * width // 8), 255, np.uint8)
    pack_counts(counts, packed, width)
    assert packed[-1] == last
