"""Sums of squares on flat arrays in host memory, and the factors that they determine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.kernels.base import Measured
from ncclkv.kernels.host import HostKernels, compiled
from ncclkv.kernels.host.chunks import CHUNK_BYTES
from ncclkv.kernels.host.measure import BLOCK, LANES, adapted
from tests.sgd_steps import segments_of

KERNELS = HostKernels()
SCRATCH = np.empty(0)
ROWS = {
    "lars": (0, (0.1, 0.9, 0.5, 0.01, 0.1, 0.5, -1.0)),
    "lamb": (2, (0.1, 0.9, 0.1, 0.99, 0.01, 1e-6, 2.0, 3.0, -1.0, -1.0, 0.1, 0.5, 0.7)),
    "squares": (0, (0.1, 0.5, -1.0)),
}
SIZES = [0, 1, LANES - 1, LANES, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK_BYTES // 4 + BLOCK + 3]


def _arrays(size: int, states: int, dtype: Any, seed: int = 0) -> list[np.ndarray]:
    """Return weights, gradients and states."""
    rng = np.random.default_rng(seed)
    working = np.dtype(dtype) if np.dtype(dtype).itemsize > 2 else np.dtype(np.float32)
    kept = [rng.random(size).astype(working) for _ in range(states)]
    return [*(rng.standard_normal(size).astype(dtype) for _ in range(2)), *kept]


def _measured(program: str, arrays: list[np.ndarray], **options: Any) -> np.ndarray:
    """Return the sums of squares of one segment."""
    weights, gradients, *states = arrays
    sums = np.zeros((1, 1 if program == "squares" else 2))
    row, segments = np.array([ROWS[program][1]]), segments_of(0, weights.size)
    KERNELS.measure(program, weights, gradients, states, row, segments, sums, SCRATCH, **options)
    return sums


def _in_order(numbers: np.ndarray) -> float:
    """Return the sum of squares in the order that `ncclkv.kernels.host.measure` promises."""
    total = 0.0
    for start in range(0, numbers.size, BLOCK):
        lanes = [0.0] * LANES
        for index, number in enumerate(numbers[start : start + BLOCK].tolist()):
            lanes[index % LANES] += number * number
        block = lanes[0]
        for lane in lanes[1:]:
            block += lane
        total += block
    return total


@pytest.mark.usefixtures("in_numpy_and_c")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_squares_are_added_in_one_order(size: int, dtype: str) -> None:
    arrays = _arrays(size, 0, dtype)
    expected = [_in_order(array.astype(np.float64)) for array in arrays]
    assert _measured("lars", arrays).tolist() == [expected]
    assert _measured("squares", arrays).tolist() == [expected[1:]]


@pytest.mark.usefixtures("in_c")
@settings(deadline=None)
@given(
    st.sampled_from([*ROWS]),
    st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    st.sampled_from(SIZES),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_c_has_numpys_bits(program: str, dtype: str, size: int, seed: int, wide: bool) -> None:
    real = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = []
    for in_c in (True, False):
        arrays = _arrays(size, ROWS[program][0], real, seed)
        masters = {"master": arrays[0].astype(np.float32)} if wide and real.itemsize == 2 else {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "active", in_c)
            sums = _measured(program, arrays, **masters)
        found.append([array.tobytes() for array in (sums, *arrays)])
    assert found[0] == found[1]


@pytest.mark.usefixtures("in_numpy_and_c")
def test_each_segment_has_sums_of_its_own_to_which_later_calls_add() -> None:
    weights, gradients = np.arange(10.0), np.ones(10)
    sums = np.array([[1.0, 2], [3, 4], [5, 6]])
    rows = np.array([ROWS["lars"][1]] * 3)
    segments = segments_of(1, 3, 3, 7)
    for _ in range(2):
        KERNELS.measure("lars", weights, gradients, (), rows, segments, sums, SCRATCH)
    assert sums.tolist() == [[1 + 2 * 5, 2 + 2 * 2], [3, 4], [5 + 2 * 86, 6 + 2 * 4]]


@pytest.mark.usefixtures("in_numpy_and_c")
def test_lamb_updates_its_states_and_no_weights() -> None:
    arrays = weights, gradients, mean, variance = [np.full(3, x) for x in (2.0, 4.0, 8.0, 16.0)]
    row = np.array([[0.5, 0.5, 0.25, 0.5, 0.25, 0.0, 1.0, 1.0, -1, -1, 0.5, 0.5, 1.0]])
    sums = np.zeros((1, 2))
    arguments = arrays[:2], arrays[2:], row, segments_of(0, 3)
    KERNELS.measure("lamb", *arguments[0], *arguments[1:], sums, SCRATCH)
    # g = clamp(2, 1): m = 4 + 1/4, v = 8 + 1/4, and the direction is m / sqrt(v) + 1.
    assert (mean == 4.25).all()
    assert (variance == 8.25).all()
    assert weights.tolist() == [2] * 3
    assert gradients.tolist() == [4] * 3
    assert sums[0, 0] == 12
    np.testing.assert_allclose(sums[0, 1], 3 * (4.25 / np.sqrt(8.25) + 1) ** 2)


@pytest.mark.usefixtures("in_numpy_and_c")
def test_norms_of_16_bit_weights_are_those_of_their_masters() -> None:
    weights, gradients = np.ones((2, 5), np.float16)
    assert _measured("lars", [weights, gradients]).tolist() == [[5, 5]]
    master = np.full(5, 2, np.float32)
    assert _measured("lars", [weights, gradients], master=master).tolist() == [[20, 5]]


@pytest.mark.usefixtures("in_numpy_and_c")
def test_a_skipped_measurement_changes_nothing() -> None:
    arrays = _arrays(5, 2, "float32")
    before = [array.tobytes() for array in arrays]
    assert not _measured("lamb", arrays, skip=np.ones(1, np.int32)).any()
    assert [array.tobytes() for array in arrays] == before
    assert _measured("lamb", arrays, skip=np.zeros(1, np.int32)).all()


def test_rates_and_gradients_are_adapted_in_float64() -> None:
    rows = np.array([[0.5, 0.0, 0.25, 1.0, 2.0, -0.5, -1.0], [0.5, 0.0, -1.0, 0, 0, 1.0, -1.0]])
    # The norm of all gradients is 0.5 * 10, and twice the bound.
    total = np.array([100.0, 2.5])
    (first, second) = adapted("lars", rows, Measured(total=total))
    scale = 2.5 / (5 + 1e-8)
    assert first.tolist() == [*rows[0, :5], -0.5 * scale, -1]
    assert second[5] == 2.5 / (10 + 1e-8)
    rows[0, 5] = 0.5
    sums = np.array([[9.0, 64.0], [9.0, 64.0]])
    (first, second) = adapted("lars", rows, Measured(sums))
    assert first.tolist() == [0.5 * (0.25 * 3 / (4 + 6 + 1)), *rows[0, 1:]]
    assert second.tolist() == rows[1].tolist()
    assert rows[0, 0] == 0.5, "the rows of the next update were changed"


@pytest.mark.parametrize(
    ("squares", "expected"),
    [(4.0, 1.0), (0.0, 1.0), (64.0, 4 / (8 + 1e-8)), (np.inf, 0.0), (np.nan, np.nan)],
)
def test_gradients_are_only_scaled_down(squares: float, expected: float) -> None:
    row = np.array([[0.0, 1.0, -1.0]])
    found = adapted("squares", row, Measured(total=np.array([squares, 4.0])))
    np.testing.assert_equal(found[0, 1], expected)


@pytest.mark.skipif(not compiled.BUILT, reason="the kernels in C are not built")
def test_c_checks_its_arguments() -> None:
    array, bounds = np.ones(4, np.float32), np.array([0, 4])
    row, sums = np.zeros((1, 7)), np.zeros((1, 2))
    given = array, array, ()
    assert compiled.measure("lars", *given, row, bounds, sums, None)
    strided = np.ones(8, np.float32)[::2]
    assert not compiled.measure("lars", strided, array, (), row, bounds, sums, None)
    for wrong in (np.zeros((2, 2)), np.zeros((1, 2), np.float32)):
        with pytest.raises(ValueError, match="1 rows of 2 float64"):
            compiled.measure("lars", *given, row, bounds, wrong, None)
    with pytest.raises(ValueError, match="not in 4 elements"):
        compiled.measure("lars", *given, row, np.array([0, 5]), sums, None)
    with pytest.raises(ValueError, match="program sgd has no norms"):
        compiled.measure("sgd", *given, row, bounds, sums, None)
    sums.flags.writeable = False
    with pytest.raises(ValueError, match="not writable|read-only"):
        compiled.measure("lars", *given, row, bounds, sums, None)
