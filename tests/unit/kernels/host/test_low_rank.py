"""Products of narrow matrices, in NumPy and in C, against plain models of the same order."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.kernels.host.low_rank import TILE, multiply, orthonormalise
from tests.codecs import SPECIAL, same, zeros
from tests.harness.extent import examples

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

LANES, LEAST_SHARE = 16, 1e-8


def dot(a: list[float], b: list[float]) -> float:
    """Return the sum of products: element i in lane i % LANES, and the lanes in their order."""
    lanes = [0.0] * LANES
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        lanes[i % LANES] += x * y
    total = lanes[0]
    for lane in lanes[1:]:
        total += lane
    return total


def orthonormal(rows: np.ndarray) -> np.ndarray:
    """Return rows made orthonormal, with Python's floats."""
    work = rows.astype(np.float64).tolist()
    norms = [math.sqrt(dot(row, row)) for row in work]
    for i, row in enumerate(work):
        norm = math.sqrt(dot(row, row))
        depends = norm == 0 or norm < LEAST_SHARE * norms[i]
        row[:] = [0.0 if depends else x / norm for x in row]
        for later in work[i + 1 :]:
            factor = dot(row, later)
            later[:] = [y - factor * x for x, y in zip(row, later, strict=True)]
    return np.array(work).astype(np.float32)


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product, added from the first row on, in float32."""
    with np.errstate(all="ignore"):
        total = np.multiply.outer(left[0], right[0])
        for tall, wide in zip(left[1:], right[1:], strict=True):
            total = total + np.multiply.outer(tall, wide)
    return total


def at(rows: np.ndarray, offset: int) -> np.ndarray:
    """Return a copy at an address as of `zeros`."""
    copy = zeros(rows.size, offset).reshape(rows.shape)
    copy[...] = rows
    return copy


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 100), st.integers(0, 3),
       st.sampled_from([1e-30, 1e-9, 1, 1e30]))  # fmt: skip
def test_rows_have_the_bits_of_the_model(
    seed: int, number: int, count: int, offset: int, scale: float
) -> None:
    rows = at(np.random.default_rng(seed).standard_normal((number, count)) * scale, offset)
    expected = orthonormal(rows)
    orthonormalise(rows)
    assert same(rows, expected)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [4, 15, 16, 17, 1000, 100_003])
def test_rows_are_orthonormal(number: int, count: int) -> None:
    rows = np.random.default_rng(count).standard_normal((number, count)).astype(np.float32)
    orthonormalise(rows)
    assert np.abs(rows.astype(float) @ rows.T - np.eye(number)).max() < 1e-6


def test_a_row_of_zeros_stays_zero_and_the_others_are_orthonormal() -> None:
    rows = np.zeros((3, 20), np.float32)
    rows[1, :2] = rows[2, 1:3] = 1
    orthonormalise(rows)
    assert rows[0].tolist() == [0] * 20
    assert np.abs(rows[1:].astype(float) @ rows[1:].T - np.eye(2)).max() < 1e-6
    assert not np.signbit(rows[0]).any()


@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
def test_a_row_that_depends_on_others_adds_nothing_along_them(scale: float) -> None:
    """A part along the first row would be sent twice."""
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 1000)) * scale
    rows = np.array([first, second, 3 * first - 2 * second, first], np.float32)
    orthonormalise(rows)
    products = rows.astype(float) @ rows.T
    assert np.abs(products - np.diag([1, 1, 1, 0])).max() < 1e-6
    assert not rows[3].any()


def test_nan_makes_all_rows_nan_without_a_warning() -> None:
    rows = np.ones((2, 20), np.float32)
    rows[0, 3] = np.nan
    orthonormalise(rows)
    assert np.isnan(rows).all()
    rows = np.full((2, 20), np.inf, np.float32)
    orthonormalise(rows)
    assert np.isnan(rows).all()


@settings(deadline=None, max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32),
    rank=st.integers(1, 4),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40) | st.sampled_from([1023, 1024, 1025, TILE + 1]),
    senders=st.integers(1, 5),
    special=st.booleans(),
    average=st.booleans(),
    with_residual=st.booleans(),
    offset=st.integers(0, 3),
)
def test_products_have_the_bits_of_the_model(
    seed: int, rank: int, rows: int, columns: int, senders: int, special: bool, average: bool,
    with_residual: bool, offset: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    left = at(rng.standard_normal((rank, rows)), offset)
    right = at(rng.standard_normal((rank, columns)), offset)
    given = rng.standard_normal((rows, columns)).astype(np.float32)
    if special:
        for each in (left, right, given):
            each.reshape(-1)[:: rng.integers(2, 9)] = rng.choice(SPECIAL)
    matrix, residual = (
        at(given, offset),
        at(np.full_like(given, 9), offset) if with_residual else None,
    )
    expected = product(left, right)
    with np.errstate(all="ignore"):
        share = expected / np.float32(senders)
        rest = given - share
    multiply(left, right, matrix, residual, senders, average)
    assert same(matrix, share if average else expected)
    assert residual is None or same(residual, rest)


@pytest.mark.parametrize("average", [False, True])
def test_arrays_of_any_strides(average: bool) -> None:
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal((2, 2, 9, 2)).astype(np.float32)[..., 0]
    matrix, residual = np.ones((2, 9, 9, 2), np.float32)[..., 1]
    expected = product(left, right)
    multiply(left, right, matrix, residual, 3, average)
    assert same(matrix, expected / np.float32(3) if average else expected)
    assert same(residual, 1 - expected / np.float32(3))
    rows = rng.standard_normal((3, 50, 2)).astype(np.float32)[..., 1]
    of_model = orthonormal(rows)
    orthonormalise(rows)
    assert same(rows, of_model)


def test_no_array_of_the_matrix_s_size_is_allocated() -> None:
    left, right = np.ones((2, 4, 1024), np.float32)
    matrix, residual = np.ones((2, 1024, 1024), np.float32)
    tracemalloc.start()
    multiply(left, right, matrix, residual, 2, True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < matrix.nbytes / 8
