"""Reductions of equal arrays in host memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import reduce as fold
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.base import Kernels
from ncclkv.kernels.host import HostKernels
from ncclkv.kernels.host.chunks import CHUNK_BYTES

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

KERNELS: Kernels = HostKernels()
REAL = ["int8", "int64", "uint16", "float16", "bfloat16", "float32", "float64"]
# One element, and both sides of a chunk's edge for every dtype.
SIZES = [0, 1, 5, *(CHUNK_BYTES // n + d for n in (1, 2, 4, 8, 16) for d in (-1, 0, 1))]
PYTHONS = {"sum": lambda a, b: a + b, "max": max, "min": min, "prod": lambda a, b: a * b}


def _dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    return np.dtype(pytest.importorskip("ml_dtypes", reason="bfloat16 needs it").bfloat16)


def _parts(count: int, size: int, dtype: np.dtype[Any]) -> list[np.ndarray]:
    """Return small integers that differ by part and by element."""
    return [((np.arange(size) * (rank + 2)) % 5 + 1).astype(dtype) for rank in range(count)]


def _expected(parts: list[np.ndarray], op: str) -> np.ndarray:
    """Compute a reduction with Python's integers, at sizes where they are fast."""
    columns = zip(*(part.astype(np.int64).tolist() for part in parts), strict=True)
    return np.array([fold(PYTHONS[op], column) for column in columns], np.int64)


@pytest.mark.parametrize("dtype", [*REAL, "complex64"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_sums_of_any_size(dtype: str, count: int) -> None:
    for size in SIZES:
        parts = _parts(count, size, _dtype(dtype))
        memory = np.full(size + 2, 9, _dtype(dtype))
        KERNELS.reduce(parts, memory[1:-1], "sum")
        exact = sum(part.astype(np.complex128) for part in parts)
        assert np.array_equal(memory[1:-1].astype(np.complex128), exact)
        assert memory[[0, -1]].tolist() == [9, 9]


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("op", PYTHONS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ops_agree_with_pythons_integers(dtype: str, op: str, count: int) -> None:
    parts = _parts(count, 100, _dtype(dtype))
    out, slot = np.zeros((2, 100), _dtype(dtype))
    KERNELS.reduce(parts, out, op)
    KERNELS.combine(parts, slot, op)
    assert np.array_equal(out.astype(np.int64), _expected(parts, op))
    assert np.array_equal(slot, out)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_out_may_be_any_of_the_parts(dtype: str, op: str, count: int) -> None:
    size = CHUNK_BYTES // 4 + 3
    expected = np.zeros(size, dtype)
    KERNELS.reduce(_parts(count, size, np.dtype(dtype)), expected, op)
    for which in range(count):
        parts = _parts(count, size, np.dtype(dtype))
        others = [part.copy() for part in parts]
        KERNELS.reduce(parts, parts[which], op)
        assert np.array_equal(parts[which], expected)
        others[which] = expected
        assert all(np.array_equal(part, other) for part, other in zip(parts, others, strict=True))


@pytest.mark.parametrize("method", ["reduce", "combine"])
def test_sums_are_made_in_the_order_of_the_parts(method: str) -> None:
    def total(*numbers: float) -> float:
        out = np.zeros(1, np.float32)
        getattr(KERNELS, method)([np.full(1, x, np.float32) for x in numbers], out, "sum")
        return float(out[0])

    # (1e8 + 1) is 1e8 in float32, so the position of the 1 changes the sum.
    assert total(1e8, 1, -1e8, 1) == 1
    assert total(1, 1e8, -1e8, 1) == 1
    assert total(1e8, -1e8, 1, 1) == 2


@pytest.mark.parametrize("method", ["reduce", "combine"])
@pytest.mark.parametrize(
    ("dtype", "numbers", "expected"),
    [
        ("float16", [2048, 1, 1], 2050),
        ("float16", [60000, 60000, -60000], 60000),
        ("bfloat16", [256, 1, 1], 258),
        ("bfloat16", [256, 1, 1, 1, 1, 1, 1, 1, 1], 264),
    ],
)
def test_16_bit_floats_are_rounded_once(
    method: str, dtype: str, numbers: list[float], expected: float
) -> None:
    out = np.zeros(1, _dtype(dtype))
    getattr(KERNELS, method)([np.full(1, x, _dtype(dtype)) for x in numbers], out, "sum")
    assert float(out[0]) == expected


def test_the_average_of_16_bit_floats_is_divided_before_it_is_rounded() -> None:
    out = np.zeros(1, np.float16)
    KERNELS.reduce([np.full(1, 60000, np.float16)] * 4, out, "avg")
    assert out[0] == 60000


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
def test_averages(dtype: str) -> None:
    parts = [np.full(3, x, _dtype(dtype)) for x in (1, 2, 4, 5)]
    out, slot = np.zeros((2, 3), _dtype(dtype))
    KERNELS.reduce(parts, out, "avg")
    KERNELS.combine(parts, slot, "avg")
    assert out.astype(np.complex128).tolist() == [3, 3, 3]
    assert slot.astype(np.complex128).tolist() == [12, 12, 12]


@pytest.mark.parametrize(
    ("dtype", "numbers", "expected"),
    [
        ("int32", [-7, 0], -3),
        ("int32", [7, 0], 3),
        ("int64", [2**62, 2**62, 0], -(2**63) // 3 + 1),
        ("int64", [-(2**63)], -(2**63)),
        ("int64", [-(2**62) - 1, -(2**62), 0], (2**63 - 1) // 3),
        ("uint8", [200, 200], 200),
        ("uint64", [2**63, 2**63 - 1], 2**63 - 1),
        ("int8", [-1] * 128, -1),
        ("int8", [1] * 200, 1),
        ("uint8", [1] * 300, 1),
        ("int32", [-(2**31), -(2**31) + 1], -(2**31) + 1),
    ],
)
def test_averages_of_integers_are_cut_toward_zero_after_a_sum_in_64_bits(
    dtype: str, numbers: list[int], expected: int
) -> None:
    out = np.zeros(2, dtype)
    KERNELS.reduce([np.full(2, x, dtype) for x in numbers], out, "avg")
    assert out.tolist() == [expected, expected]


@pytest.mark.parametrize("method", ["reduce", "combine"])
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", [False, True, True, True]),
        ("max", [False, True, True, True]),
        ("min", [False, False, False, True]),
        ("prod", [False, False, False, True]),
    ],
)
def test_bools(method: str, op: str, expected: list[bool]) -> None:
    parts = [np.array([False, False, True, True]), np.array([False, True, False, True])]
    out = np.zeros(4, bool)
    getattr(KERNELS, method)([parts[0], *parts], out, op)
    assert out.tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", ["max", "min", "sum", "avg", "prod"])
def test_nan_propagates_from_any_part(dtype: str, op: str) -> None:
    parts = [np.ones(3, _dtype(dtype)) for _ in range(3)]
    for rank, part in enumerate(parts):
        part[rank] = np.nan
    out = np.zeros(3, _dtype(dtype))
    KERNELS.reduce(parts, out, op)
    assert np.isnan(out.astype(np.float32)).all()


def test_complex_sums_products_and_averages() -> None:
    parts = [np.array([1 + 2j, np.inf + 1j], np.complex64), np.array([3 - 4j, 1j], np.complex64)]
    out = np.zeros(2, np.complex64)
    for op, first in (("sum", 4 - 2j), ("avg", 2 - 1j), ("prod", 11 + 2j)):
        KERNELS.reduce(parts, out, op)
        assert out[0] == first
    KERNELS.reduce(parts, out, "avg")
    assert (out[1].real, out[1].imag) == (np.inf, 1)


@pytest.mark.parametrize("method", ["reduce", "combine"])
def test_settings_for_floating_point_errors_have_no_effect(method: str) -> None:
    with np.errstate(all="raise"):
        for dtype in ("float16", "float32", "int8"):
            out = np.zeros(1, dtype)
            largest = np.finfo(dtype).max if np.dtype(dtype).kind == "f" else 127
            getattr(KERNELS, method)([np.full(1, largest, dtype)] * 2, out, "sum")
            assert out[0] == (-2 if dtype == "int8" else np.inf)


def _strided(d: np.dtype[Any]) -> list[np.ndarray]:
    return [(np.arange(24) % 7 + rank).astype(d).reshape(4, 6)[:, ::-2] for rank in range(3)]


def _fortran(d: np.dtype[Any]) -> list[np.ndarray]:
    return [np.asfortranarray((np.arange(12) * n).astype(d).reshape(3, 4)) for n in (1, 2, 4)]


def _mixed(d: np.dtype[Any]) -> list[np.ndarray]:
    return [
        np.ones((2, 3), d),
        np.ones((3, 2), d).T,
        np.broadcast_to(np.arange(3).astype(d), (2, 3)),
    ]


def _large(d: np.dtype[Any]) -> list[np.ndarray]:
    return [(np.arange(2**18) % 61).astype(d).reshape(2, -1)[:, ::-2], np.ones((2, 2**16), d)]


def _swapped(d: np.dtype[Any]) -> list[np.ndarray]:
    return [np.arange(4).astype(d.newbyteorder("S")), np.arange(4).astype(d)]


VALUES: dict[str, Callable[[np.dtype[Any]], list[np.ndarray]]] = {
    "strided": _strided,
    "fortran": _fortran,
    "mixed": _mixed,
    "no dimensions": lambda d: [np.array(x, d) for x in (1, 2, 4)],
    "empty": lambda d: [np.empty((0, 3), d)] * 2,
    "one value": lambda d: [np.arange(6).astype(d).reshape(2, 3).T],
    "several pieces": _large,
    "other byte order first": _swapped,
    "other byte order last": lambda d: _swapped(d)[::-1],
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16", "complex64"])
@pytest.mark.parametrize("name", VALUES)
def test_combine_takes_any_strides(name: str, dtype: str) -> None:
    values = VALUES[name](np.dtype(dtype))
    memory = np.full(values[0].size + 2, 9, dtype)
    before = [value.copy() for value in values]
    KERNELS.combine(values, memory[1:-1], "sum")
    expected = sum(value.astype(np.complex128) for value in before)
    assert np.array_equal(memory[1:-1].astype(np.complex128), np.ravel(expected))
    assert memory[[0, -1]].tolist() == [9, 9]
    assert all(np.array_equal(value, old) for value, old in zip(values, before, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_nothing_as_large_as_a_message_is_allocated(dtype: str, op: str) -> None:
    # A message of 64 chunks; averages of integers take the most scratch memory, six chunks.
    size = 64 * CHUNK_BYTES // np.dtype(dtype).itemsize
    parts = [np.ones(size, dtype) for _ in range(3)]
    strided = [np.ones((2, size), dtype)[:, ::2] for _ in range(3)]
    out = np.zeros(size, dtype)
    tracemalloc.start()
    try:
        KERNELS.reduce(parts, out, op)
        KERNELS.combine(strided, out, op)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * CHUNK_BYTES
