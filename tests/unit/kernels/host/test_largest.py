"""The largest numbers, in NumPy and in C: adversarial arrays against a plain model that sorts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.kernels.host.largest import TILE, add_largest, parts_of, take_largest
from tests.codecs import SPECIAL, numbers, same, zeros
from tests.harness.extent import examples

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

SAMPLED_OF, MOST_SAMPLED = 16, 65_536
"""The numbers of ``c/largest.h``."""

Arrays = dict[str, Callable[[int], np.ndarray]]


def largest(sums: np.ndarray, wanted: int) -> np.ndarray:
    """Return the indices of the largest magnitudes, in ascending order; NaN is the largest."""
    sizes = np.abs(sums.astype(np.float64))
    sizes[np.isnan(sums)] = np.inf
    is_nan = np.isnan(sums)
    order = sorted(range(sums.size), key=lambda i: (not is_nan[i], -sizes[i], i))
    return np.array(sorted(order[:wanted]), np.int64)


def largest_quickly(sums: np.ndarray, wanted: int) -> np.ndarray:
    """Return the same as `largest`, for long arrays: a stable sort keeps the first of equals."""
    order = np.lexsort((-np.where(np.isnan(sums), np.inf, np.abs(sums)), ~np.isnan(sums)))
    return np.sort(order[:wanted])


def check(gradients: np.ndarray, residual: np.ndarray, wanted: int, quickly: bool = False) -> None:
    """Take the largest; compare the payload and every residual with the model's."""
    with np.errstate(all="ignore"):
        sums = residual + gradients
    expected = (largest_quickly if quickly else largest)(sums, wanted)
    payload = np.full(8 * wanted + 1, 255, np.uint8)[1:]
    gradients.flags.writeable = False
    take_largest(gradients, residual, payload)
    indices, values = parts_of(payload)
    assert indices.tolist() == expected.tolist()
    assert same(values, sums[expected])
    sums[expected] = 0
    assert same(residual, sums)


LENGTHS = [*range(1, 71), 127, 128, 129, 1023, 1024, 1025, 4095, 4097]


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5, 1])
def test_all_lengths(ratio: float) -> None:
    rng = np.random.default_rng(0)
    for count in LENGTHS:
        gradients, residual = rng.integers(-9, 9, (2, count)).astype(np.float32)
        check(gradients, residual, max(1, round(ratio * count)))


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32), st.integers(1, 300), st.floats(0, 1), st.booleans(),
       st.integers(0, 3))  # fmt: skip
def test_pushes_are_those_of_the_model(
    seed: int, count: int, ratio: float, special: bool, offset: int
) -> None:
    rng, residual = np.random.default_rng(seed), zeros(count, offset)
    for _ in range(5):
        check(numbers(rng, count, special, offset), residual, max(1, round(ratio * count)))


SHAPES: Arrays = {
    "all 0": lambda count: np.zeros(count),
    "all -0": lambda count: np.full(count, -0.0),
    "all equal": lambda count: np.where(np.arange(count) % 3, 1.0, -1.0),
    "ascending": lambda count: np.arange(count),
    "descending": lambda count: -np.arange(count)[::-1],
    "denormal": lambda count: np.arange(count) % 251 * 1e-45,
    "special": lambda count: np.resize(SPECIAL, count),
    "all NaN": lambda count: np.full(count, np.nan),
    "one is not 0": lambda count: np.eye(1, count, count - 1)[0],
    "two magnitudes": lambda count: np.arange(count) % 97 % 2,
    "normal": lambda count: np.random.default_rng(1).standard_normal(count),
    "few are large": lambda count: np.where(np.arange(count) % 1009, 1e-3, np.arange(count)),
}


@pytest.mark.parametrize("name", [*SHAPES])
@pytest.mark.parametrize("count", [1000, (1 << 17) - 1, 1 << 17, (1 << 17) + 1])
def test_shapes(name: str, count: int) -> None:
    gradients = SHAPES[name](count).astype(np.float32)
    for wanted in (1, count // 100, count // 3, count - 1, count):
        check(gradients.copy(), np.zeros(count, np.float32), wanted, quickly=True)


def sampled(count: int) -> np.ndarray:
    """Return the elements that C looks at first."""
    number = min(count // SAMPLED_OF, MOST_SAMPLED)
    stride, at = count // number, np.arange(number, dtype=np.uint64)
    return at * stride + at * np.uint64(2654435761) % 2**32 % stride


@pytest.mark.parametrize("large", [1e6, 1e-6])
def test_a_sample_that_misleads_costs_time_alone(large: float) -> None:
    """Elements of the sample are the largest, or the smallest."""
    count = 1 << 18
    gradients = np.random.default_rng(2).standard_normal(count).astype(np.float32)
    gradients[sampled(count)] *= np.float32(large)
    for wanted in (1, count // 100, count // 10):
        check(gradients.copy(), np.zeros(count, np.float32), wanted, quickly=True)


@pytest.mark.parametrize("period", [4, 15, 16, 17, 256])
def test_periodic_arrays(period: int) -> None:
    count = 1 << 18
    gradients = (np.arange(count) % period == 0).astype(np.float32)
    gradients *= 1 + np.arange(count, dtype=np.float32) % 1013
    for wanted in (count // 100, count // 5):
        check(gradients.copy(), np.zeros(count, np.float32), wanted, quickly=True)


def test_nan_is_the_largest_and_is_sent_whatever_its_bits() -> None:
    gradients = np.array([np.inf, 0, 1, 0, -np.inf, 0], np.float32)
    gradients.view(np.uint32)[[1, 3, 5]] = 0x7FFFFFFF, 0xFFC00000, 0x7F800001
    residual, payload = np.zeros(6, np.float32), np.empty(16, np.uint8)
    take_largest(gradients, residual, payload)
    assert payload[:8].view(np.int32).tolist() == [1, 3]
    take_largest(np.zeros(6, np.float32), residual, payload)
    assert payload[:8].view(np.int32).tolist() == [0, 5]
    take_largest(np.zeros(6, np.float32), residual, payload)
    assert payload[:8].view(np.int32).tolist() == [2, 4]
    assert not residual.any()


def test_arrays_of_any_strides() -> None:
    rng = np.random.default_rng(3)
    residual, gradients = rng.standard_normal((2, 500, 2)).astype(np.float32)
    kept = residual[:, 1].copy()
    check(gradients[:, 0], residual[:, 0], 25)
    assert residual[:, 1].tolist() == kept.tolist()


def test_nothing_is_wanted_of_nothing() -> None:
    nothing = np.empty(0, np.float32)
    take_largest(nothing, nothing.copy(), np.empty(0, np.uint8))


def payload_of(indices: list[int], values: list[float]) -> np.ndarray:
    return np.concatenate(
        [np.array(indices, np.int32).view(np.uint8), np.array(values, np.float32).view(np.uint8)]
    )


def test_numbers_are_added_at_their_indices() -> None:
    sums = np.array([1, 2, -0.0, 4], np.float32)
    add_largest(payload_of([0, 2, 3], [1.5, -0.0, np.inf]), sums)
    assert sums.tolist() == [2.5, 2, -0.0, np.inf]
    add_largest(payload_of([3], [-np.inf]), sums)
    assert np.isnan(sums[3])
    add_largest(payload_of([], []), sums)
    sums = np.zeros((3, 2), np.float32)[:, 1]
    add_largest(payload_of([2], [7]), sums)
    assert sums.tolist() == [0, 0, 7]


@pytest.mark.parametrize(("index", "named"), [(3, 3), (2**31 - 1, 2**31 - 1), (-1, 2**32 - 1)])
def test_an_index_beyond_the_array_is_refused(index: int, named: int) -> None:
    with pytest.raises(ValueError, match=f"a payload has index {named}, of 3 elements"):
        add_largest(payload_of([1, index], [1, 1]), np.zeros(3, np.float32))


def test_no_array_of_the_gradients_size_is_allocated() -> None:
    gradients, residual = np.random.default_rng(4).standard_normal((2, 1 << 22)).astype(np.float32)
    payload = np.empty(8 * 40_000, np.uint8)
    tracemalloc.start()
    take_largest(gradients, residual, payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < gradients.nbytes / 4
    assert gradients.size > 10 * TILE
