"""NumPy arrays and scalars as value and out; objects that are no arrays."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from ncclkv.arrays import as_out, as_value
from ncclkv.errors import NotSupported, UsageError

WHAT = "push of key 3"


def _read_only() -> np.ndarray:
    x = np.arange(4.0)
    x.flags.writeable = False
    return x


ARRAYS = {
    "contiguous": np.arange(6.0).reshape(2, 3),
    "no dimensions": np.array(3.0),
    "empty": np.empty((0, 4)),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(12.0)[::2],
    "reversed": np.arange(6.0)[::-1],
    "transposed": np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
    "big-endian": np.arange(3, dtype=">f4"),
}


@pytest.mark.parametrize("x", ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_are_returned_unchanged(x: np.ndarray) -> None:
    assert as_value(x, WHAT) is x
    assert as_out(x, WHAT) is x


def test_read_only_arrays_are_refused_as_outs() -> None:
    x = _read_only()
    assert as_value(x, WHAT) is x
    with pytest.raises(UsageError, match=r"^pull of key 3: out is read-only; pass an array that"):
        as_out(x, "pull of key 3")


def test_subclasses_become_views_of_the_base_class(tmp_path: Any) -> None:
    memmap = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=(3,))
    # A view avoids the PendingDeprecationWarning of np.matrix.
    matrix = np.eye(2).view(np.matrix)
    for x in (memmap, matrix):
        for view in (as_value(x, WHAT), as_out(x, WHAT)):
            assert type(view) is np.ndarray
            assert view.shape == x.shape
            assert np.shares_memory(view, x)
    as_out(memmap, WHAT)[:] = 7
    assert memmap.tolist() == [7, 7, 7]


def test_a_read_only_subclass_is_refused_as_out() -> None:
    with pytest.raises(UsageError, match="out is read-only"):
        as_out(_read_only().view(np.recarray), WHAT)


@pytest.mark.parametrize("function", [as_value, as_out])
def test_masked_arrays_are_refused(function: Any) -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(UsageError, match=r"push of key 3: a masked array hides .* \.filled\(0\)"):
        function(masked, WHAT)


def test_numpy_scalars_are_arrays_without_dimensions() -> None:
    for scalar in (np.float32(3), np.float64(3), np.int8(3), np.bool_(True), np.complex64(3)):
        view = as_value(scalar, WHAT)
        assert type(view) is np.ndarray
        assert view.shape == ()
        assert view.dtype == scalar.dtype
        assert view[()] == scalar
        with pytest.raises(
            UsageError, match=r"NumPy scalar \(\w+\), which cannot be written; pass"
        ):
            as_out(scalar, WHAT)


def test_out_whose_elements_share_memory_is_refused() -> None:
    x = np.lib.stride_tricks.as_strided(np.zeros(3), shape=(4, 3), strides=(0, 8))
    assert x.flags.writeable
    with pytest.raises(UsageError, match=r"elements of out share memory \(strides \(0, 8\)\)"):
        as_out(x, WHAT)
    assert as_value(x, WHAT) is x


def test_a_zero_stride_that_repeats_no_element_is_accepted() -> None:
    one = np.lib.stride_tricks.as_strided(np.zeros(3), shape=(1, 3), strides=(0, 8))
    none = np.lib.stride_tricks.as_strided(np.zeros(3), shape=(4, 0), strides=(0, 8))
    assert as_out(one, WHAT) is one
    assert as_out(none, WHAT) is none


@pytest.mark.parametrize(
    ("x", "subject"),
    [(3.0, "a float"), (3, "an int"), (True, "a bool"), (1j, "a complex")],
)
def test_python_numbers_are_refused(x: Any, subject: str) -> None:
    with pytest.raises(UsageError) as caught:
        as_value(x, WHAT)
    assert str(caught.value) == (
        f"push of key 3: {subject} is not an array; a list means several arrays: "
        "pass np.asarray(...)"
    )
    with pytest.raises(UsageError) as caught:
        as_out(x, WHAT)
    assert str(caught.value) == (
        f"push of key 3: out is a Python {type(x).__name__}, which cannot be written; pass an "
        "array of shape () as out"
    )


@pytest.mark.parametrize(
    ("x", "subject"),
    [
        ("text", "a str"),
        (b"bytes", "a bytes"),
        (None, "None"),
        ({}, "a dict"),
        ({1}, "a set"),
        (object(), "an object"),
        (array.array("f", [1.0]), "an array"),
        (memoryview(b"12"), "a memoryview"),
    ],
)
@pytest.mark.parametrize("function", [as_value, as_out])
def test_other_objects_are_refused_by_type_name(x: Any, subject: str, function: Any) -> None:
    with pytest.raises(UsageError) as caught:
        function(x, WHAT)
    assert not isinstance(caught.value, NotSupported)
    assert str(caught.value).startswith(f"push of key 3: {subject} is not an array; pass a NumPy")
