"""Python numbers as arrays: their dtypes, their rounding, and the numbers that a dtype lacks."""

from __future__ import annotations

import fractions
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclkv.arrays.number import as_array, dtype_of, is_number
from ncclkv.errors import DTypeMismatch

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@given(st.sampled_from(INTEGERS), st.integers(-(2**70), 2**70))
def test_integers_are_exact_or_refused(name: str, number: int) -> None:
    dtype = np.dtype(name)
    limits = np.iinfo(dtype)
    if limits.min <= number <= limits.max:
        made = as_array(number, dtype, "push")
        assert (made.shape, made.dtype, int(made)) == ((), dtype, number)
    else:
        with pytest.raises(DTypeMismatch, match=f"beyond the range of {name}, {limits.min} to"):
            as_array(number, dtype, "push")


@given(st.sampled_from(["float16", "float32", "float64"]), st.floats())
def test_floats_are_rounded_as_numpy_rounds(name: str, number: float) -> None:
    with np.errstate(all="ignore"):
        expected = np.float64(number).astype(name)
    np.testing.assert_array_equal(as_array(number, np.dtype(name), "push"), expected)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float16", "complex64"])
@pytest.mark.parametrize("number", [True, 2, 1.5, 1j])
def test_each_kind_is_contained_in_the_later_kinds(number: Any, dtype: str) -> None:
    order = [bool, int, float, complex]
    holds = {"bool": 0, "int32": 1, "float16": 2, "complex64": 3}[dtype]
    if order.index(type(number)) <= holds:
        assert as_array(number, np.dtype(dtype), "push") == number
    else:
        kind, own = type(number).__name__, dtype_of(number)
        text = f"push: a Python {kind} is no number of dtype {dtype}; convert it, or use {own}"
        with pytest.raises(DTypeMismatch) as caught:
            as_array(number, np.dtype(dtype), "push")
        assert str(caught.value) == text


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_an_integer_that_no_float_holds(dtype: str) -> None:
    with pytest.raises(DTypeMismatch, match="the Python int is beyond the range of"):
        as_array(10**5000, np.dtype(dtype), "push")


def test_other_objects_are_no_numbers() -> None:
    for thing in ("1", b"1", None, [1], np.int64(1), np.zeros(()), fractions.Fraction(1, 2)):
        assert not is_number(thing)
