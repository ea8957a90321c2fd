"""Checksums of arrays in host memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.host import HostKernels, compiled
from ncclkv.kernels.host.checksum import BLOCK_BYTES, FACTOR, FIRST, SECOND, STEP

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

MODULUS = 2**64
SIZES = [0, 1, 7, 8, 9, 100, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 3]


def checksum(array: np.ndarray) -> int:
    return int(HostKernels().checksums([array])[0])


def by_hand(data: bytes) -> int:
    """Compute the definition with Python's integers."""
    total = 0
    for lo in range(0, len(data), 8):
        block, place = divmod(lo, BLOCK_BYTES)
        x = (int.from_bytes(data[lo : lo + 8], "little") + (place // 8 + 1) * STEP) % MODULUS
        x = ((x ^ x >> 32) * FIRST) % MODULUS
        x = ((x ^ x >> 29) * SECOND) % MODULUS
        total += x * (2 * block + 1) * FACTOR
    return total % MODULUS


@pytest.mark.parametrize("size", SIZES)
def test_checksums_match_the_definition(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert checksum(np.frombuffer(data, np.uint8)) == by_hand(data)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64", "complex128"])
def test_bytes_count_and_not_the_dtype(dtype: str) -> None:
    x = (np.arange(40_000) % 2).astype(dtype)
    assert checksum(x) == by_hand(x.tobytes()) == checksum(x.reshape(100, 400))


def test_bfloat16() -> None:
    name = pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16
    x = np.arange(1001).astype(name)
    assert checksum(x) == by_hand(x.tobytes()) == checksum(np.repeat(x, 2)[::2])


SHAPES: dict[str, Any] = {
    "no dimensions": lambda x: x[0, 0, 0, ...],
    "strided": lambda x: x[:, ::2, ::-1],
    "transposed": lambda x: x.transpose(2, 0, 1),
    "repeated": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "shifted": lambda x: np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(x.dtype),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_any_strides(shape: Any) -> None:
    x = shape(np.random.default_rng(1).standard_normal((30, 40, 50)).astype(np.float32))
    assert checksum(x) == by_hand(x.tobytes())


def test_each_bit_counts() -> None:
    x = np.zeros(2 * BLOCK_BYTES, np.uint8)
    seen = {checksum(x)}
    places = [0, 1, 7, 8, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES - 1]
    for place in places:
        for bit in range(8):
            x[place] = 1 << bit
            seen.add(checksum(x))
        x[place] = 0
    assert len(seen) == 1 + 8 * len(places)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("apart", [1, 2, 1000, 100_000])
def test_changes_of_two_elements_do_not_cancel(dtype: Any, apart: int) -> None:
    x = np.random.default_rng(2).standard_normal(200_000).astype(dtype)
    before = checksum(x)
    for first in range(50):
        swapped, turned = x.copy(), x.copy()
        swapped[[first, first + apart]] = swapped[[first + apart, first]]
        turned[[first, first + apart]] *= -1
        assert checksum(swapped) != before
        assert checksum(turned) != before


def test_checksums_are_sums_of_bits() -> None:
    zeros = np.zeros(5, np.float32)
    assert checksum(zeros) != checksum(-zeros)
    nan = np.full(5, 0x7FC00000, np.uint32)
    other = nan.copy()
    other[3] += 1
    assert np.isnan(other.view(np.float32)).all()
    assert checksum(nan) != checksum(other)
    assert checksum(nan) == checksum(nan.copy())


def test_temporaries_are_bounded() -> None:
    x = np.ones((1500, 2000), np.float32)
    tracemalloc.start()
    try:
        HostKernels().checksums([x, x.T, x[:, ::2]])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * BLOCK_BYTES


@pytest.mark.skipif(not compiled.BUILT, reason="the kernels in C are not built")
def test_the_kernel_in_c_refuses_wrong_arrays() -> None:
    x = np.zeros((4, 4))
    for arguments, error in [
        ((x.T[1:], BLOCK_BYTES), ValueError),
        ((x, 12), ValueError),
        ((x, 0), ValueError),
        ((x,), TypeError),
        ((None, BLOCK_BYTES), TypeError),
    ]:
        with pytest.raises(error):
            compiled.checksum(*arguments)
