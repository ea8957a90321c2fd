"""Sums, casts and updates of 16-bit floats in C against NumPy's: equal bits for all numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.base import Segments
from ncclkv.kernels.host import HostKernels, compiled
from ncclkv.kernels.host.pack import cast
from ncclkv.kernels.host.reduce import FlatReducer, combine, finish
from ncclkv.kernels.programs import PROGRAMS
from tests.optimizers.cases import dtype_of
from tests.sgd_steps import segments_of

pytestmark = pytest.mark.usefixtures("in_c")

KERNELS = HostKernels()
REDUCE = import_module("ncclkv.kernels.host.reduce")  # the package has a function of this name
NARROW = ["float16", "bfloat16"]
LENGTH = 1024
"""Elements of a tile."""
VARIANTS = [(each.name, states) for each in PROGRAMS.values() for states in each.states]
ADD = (0.0, 1.0, -1.0)
"""Numbers of the program ``test``, which adds the gradient."""
LONG = [1 << 16, 7]
"""Lengths of segments: of 7 elements even a processor with F16C converts one after another."""


def all_numbers(dtype: np.dtype[Any]) -> np.ndarray:
    """Return the number of each bit pattern."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether the bits are equal; all NaNs count as equal."""
    with np.errstate(invalid="ignore"):
        is_nan, also = np.isnan(expected), np.isnan(found)
    return np.array_equal(is_nan, also) and found[~is_nan].tobytes() == expected[~is_nan].tobytes()


def add(
    weights: np.ndarray, gradients: np.ndarray, master: np.ndarray | None, length: int
) -> np.ndarray:
    """Add gradients to weights by the program ``test`` in C; return the sums in float32."""
    sums, given = np.zeros(weights.size, np.float32), (weights, gradients)
    words = [each.view(np.uint16) if each.dtype.kind == "V" else each for each in given]
    bounds = segments_of(*range(0, weights.size, length), weights.size).bounds
    rows = np.tile(ADD, (bounds.size - 1, 1))
    assert compiled.update("test", words[0], words[1], (sums,), rows, bounds, master)
    return sums


@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize("dtype", NARROW)
def test_every_number_is_widened_and_rounded_back(dtype: str, length: int) -> None:
    numbers = all_numbers(dtype_of(dtype))
    # -0 changes no number, not even 0.
    weights, nothing = numbers.copy(), np.full(numbers.size, -0.0, numbers.dtype)
    assert same(add(weights, nothing, None, length), numbers.astype(np.float32))
    assert same(weights, numbers)
    weights = nothing.copy()
    assert same(add(weights, numbers, None, length), numbers.astype(np.float32))
    assert same(weights, numbers)


@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize("dtype", NARROW)
def test_numbers_between_two_neighbours_are_rounded_to_nearest_even(
    dtype: str, length: int
) -> None:
    real = dtype_of(dtype)
    numbers, last = all_numbers(real).astype(np.float32), 16 if dtype == "bfloat16" else 13
    # Also behind the largest number, from where on numbers are rounded to infinity.
    halfway = (numbers.view(np.uint32) + (1 << (last - 1))).view(np.float32)
    if dtype == "float16":
        subnormal = np.abs(numbers) < 2.0**-14
        signs = np.copysign(np.float32(1), numbers[subnormal])
        halfway[subnormal] = numbers[subnormal] + signs * np.float32(2**-25)
    middle = halfway.view(np.uint32)
    some = np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, np.uint32)
    for bits in (middle, middle - 1, middle + 1, some):
        master = bits.astype(np.uint32).view(np.float32)
        weights = np.zeros(master.size, real)
        with np.errstate(all="ignore"):
            expected = master.astype(real)
        add(weights, np.full(master.size, -0.0, real), master, length)
        assert same(weights, expected)


def numbers_of(seed: int, size: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return numbers of all magnitudes, with infinities and NaN, at an odd address."""
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal(size) * 10.0 ** rng.integers(-9, 6, size)
    chosen = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8, 65504.0, 1e-40, 3e38], size)
    memory = np.zeros(size * dtype.itemsize + 1, np.uint8)
    array = memory[1:].view(dtype)
    with np.errstate(all="ignore"):
        array[...] = np.where(rng.random(size) < 0.1, chosen, drawn).astype(dtype)
    return array


def numpy_alone(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Make a call with the kernels of NumPy."""
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "active", False)
        call()


@pytest.fixture
def no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sums by NumPy fail."""
    monkeypatch.setattr(REDUCE, "_fold", None)


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", NARROW)
def test_every_number_is_summed_as_in_numpy(
    dtype: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = all_numbers(dtype_of(dtype))
    for distance in (0, 1, 1 << 15, 12_345, 54_321):
        parts = [numbers, np.roll(numbers, distance)]
        found, expected = numbers.copy(), numbers.copy()
        assert FlatReducer(numbers.dtype, numbers.size, op)(parts, found) is None
        numpy_alone(monkeypatch, lambda: KERNELS.reduce(parts, expected, op))  # noqa: B023
        assert same(found, expected), distance


@pytest.mark.parametrize("stream", [False, True], ids=["stored", "streamed"])
@pytest.mark.parametrize("out", ["new", "wide", "first", "last"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", NARROW)
def test_sums_have_numpys_bits(
    dtype: str, op: str, count: int, out: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dtype_of(dtype)
    for size in (0, 1, 7, 8, LENGTH - 1, LENGTH, 3 * LENGTH + 7, 40_000):
        parts = [numbers_of(n, size, real) for n in range(count)]
        total = np.zeros(size, np.float32 if out == "wide" else real)
        expected = total.copy()
        numpy_alone(
            monkeypatch,
            lambda: FlatReducer(total.dtype, size, op)(parts, expected),  # noqa: B023
        )
        if out in ("first", "last"):
            total = parts[0 if out == "first" else -1]
        with monkeypatch.context() as patch:
            patch.setattr(REDUCE, "_fold", None)
            FlatReducer(total.dtype, size, op)(parts, total, stream)
        assert same(total, expected), size


@pytest.mark.usefixtures("no_numpy")
@pytest.mark.parametrize("dtype", NARROW)
def test_the_values_of_a_key_are_combined_in_c(dtype: str) -> None:
    values = [np.full((3, 5), n, dtype_of(dtype)) for n in range(4)]
    slot = np.empty(15, values[0].dtype)
    combine(values, slot, "sum")
    assert (slot == 6).all()


def test_integers_of_16_bits_are_no_bfloat16() -> None:
    parts, total = [np.full(4, 0x3F80, np.uint16)] * 2, np.zeros(4, np.uint16)
    KERNELS.reduce(parts, total, "sum")
    assert (total == 0x7F00).all()
    single = np.zeros(4, np.float32)
    cast(single, parts[0])
    assert (single == 0x3F80).all()
    KERNELS.unpack(single, total)
    assert (total == 0x3F80).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_every_number_is_cast_as_in_numpy(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = all_numbers(dtype_of(dtype))
    wide = np.empty(numbers.size, np.float32)
    expected = numbers.astype(np.float32)
    last = np.random.default_rng(3).integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        rounded = last.astype(numbers.dtype)
    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", None)
        cast(wide, numbers)
        narrow = np.empty_like(numbers)
        finish(last, 2, narrow, "sum")
    assert same(wide, expected)
    assert same(narrow, rounded)
    # Other layouts are NumPy's.
    strided = np.zeros((2, numbers.size), np.float32).T[:, 0]
    cast(strided, numbers)
    assert same(strided, expected)


def test_casts_of_other_arrays_are_left_to_numpy_or_refused() -> None:
    half, single, double = (np.ones(6, dtype) for dtype in ("f2", "f4", "f8"))
    for target, source in ((half, half), (single, single), (half, double), (double, half)):
        assert not compiled.cast(target, source)
    assert not compiled.cast(half, np.ones(12, np.float32)[::2])
    with pytest.raises(ValueError, match="a source of 20 bytes, where 24 are expected"):
        compiled.cast(half, np.ones(5, np.float32))
    with pytest.raises(ValueError, match="a source of 10 bytes, where 12 are expected"):
        compiled.cast(single, np.ones(5, np.float16))
    with pytest.raises(ValueError, match="read-only"):
        compiled.cast(np.broadcast_to(half, (6,)), single)
    with pytest.raises(TypeError, match="cast takes 2 arguments, and was given 1"):
        compiled.cast(half)  # type: ignore[call-arg]


def test_sums_of_several_types_are_left_to_numpy_or_refused() -> None:
    half, single = np.ones(6, np.float16), np.ones(6, np.float32)
    words = half.view(np.uint16)
    for parts, out in (
        ([half, words], half),
        ([half, single], single),
        ([single, half], single),
        ([half, half], words),
        ([half, half], np.ones(6)),
        ([half[::2], half[::2]], half[:3]),
    ):
        assert not compiled.total(parts, out, False, False)
    with pytest.raises(ValueError, match="a part of 10 bytes, where 12 are expected"):
        compiled.total([half, half[:5]], half.copy(), False, False)
    with pytest.raises(ValueError, match="a part of 12 bytes, where 10 are expected"):
        compiled.total([half, half], np.ones(5, np.float32), False, False)


@pytest.mark.parametrize("has_master", [False, True], ids=["alone", "master"])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("name", "states"), VARIANTS)
def test_programs_have_numpys_bits(name: str, states: int, dtype: str, has_master: bool) -> None:
    real, wide = dtype_of(dtype), np.dtype(np.float32)
    size = 3 * LENGTH + 7
    arrays = [numbers_of(n, size, real) for n in range(2)]
    arrays += [numbers_of(2 + n, size, wide) for n in range(states + 1)]
    if name == "adamax":
        # Its maximum is never -0: of zeros of both signs NumPy may return either.
        np.abs(arrays[3], out=arrays[3])
    rng = np.random.default_rng(7)
    rows = rng.random((3, len(PROGRAMS[name].scalars)))
    rows[1, -1] = -1
    segments, gradients = segments_of(5, 6, LENGTH + 9, size - 3), arrays[1].tobytes()
    expected = [array.copy() for array in arrays]
    for _ in range(2):
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(compiled, "active", False)
            step(name, expected, rows, segments, has_master)
        step(name, arrays, rows, segments, has_master)
    for array, wanted in zip(arrays, expected, strict=True):
        assert same(array, wanted)
    assert arrays[1].tobytes() == gradients, "gradients were written"


def step(
    name: str, arrays: list[np.ndarray], rows: np.ndarray, segments: Segments, has_master: bool
) -> None:
    """Update weights, gradients and states of a list, whose last array is the master."""
    weights, gradients, *states, master = arrays
    given = master if has_master else None
    KERNELS.update(name, weights, gradients, states, rows, segments, None, given)


def test_arrays_of_other_dtypes_are_left_to_numpy_untouched() -> None:
    half, single, row = np.ones(6, np.float16), np.ones(6, np.float32), np.ones((1, 5))
    bounds = segments_of(0, 6).bounds
    words, wide = half.view(np.uint16), np.ones(6)
    strided, swapped = np.ones(12, np.float16)[::2], np.ones(6, ">f2")
    for weights, gradients, states, master in (
        (half, single, (), None),
        (half, words, (), None),
        (words, half, (), None),
        (half, strided, (), None),
        (strided, half, (), None),
        (swapped, swapped, (), None),
        (half, half, (wide,), None),
        (half, half, (half,), None),
        (half, half, (), wide),
        (single, single, (), single),
    ):
        assert not compiled.update("sgd", weights, gradients, states, row, bounds, master)
    for array in (half, single, strided, swapped):
        assert (array == 1).all()
