"""The arrays of programs: small integers, in every memory layout."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.conformance.programs.plan import KeyPlan

Array = NDArray[Any]

LAYOUTS = ("plain", "strided", "reversed", "fortran", "readonly", "swapped", "scalar")
UNWRITABLE = ("readonly", "scalar")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def is_16_bit_float(dtype: np.dtype[Any]) -> bool:
    return dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def is_real_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or is_16_bit_float(dtype)


def payload(plan: KeyPlan, rank: int, operation: int, item: int) -> Array:
    """Return a rank's values for the `item`-th array of the `operation`-th operation."""
    dtype = dtype_of(plan.dtype)
    size = int(np.prod(plan.shape))
    base = (np.arange(size) * 3 + 5 * rank + 7 * operation + 11 * item) % 9 - 4
    if dtype.kind == "b":
        base = base > 2
    elif dtype.kind == "u":
        base = base + 4
    elif dtype.kind == "c":
        base = base + 1j * base[::-1]
    if dtype.itemsize == 1 and dtype.kind in "iu":
        base = base * 25  # sums over ranks wrap around
    if plan.op == "avg" and dtype.kind not in "iu":
        base = base * 12  # 1 to 4 ranks divide the sum exactly
    return base.astype(dtype).reshape(plan.shape)


def is_tame(array: Array) -> bool:
    """Return whether sums of a few such arrays are exact in float32."""
    wide = array.astype(np.complex128)
    return bool(np.all((np.abs(wide) <= 20) & (wide == np.rint(wide))))


def laid_out(array: Array, layout: str) -> Any:
    """Return a copy of `array` in a layout, or a plain copy if it cannot have the layout."""
    if layout == "strided" and array.ndim:
        wide = np.repeat(array, 2, axis=0)
        wide[1::2] = 0
        return wide[::2]
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "fortran":
        return np.array(array, order="F")
    if layout == "swapped" and array.dtype.kind in "iufc":
        return array.astype(array.dtype.newbyteorder("S"))
    if layout == "scalar" and not array.ndim:
        return array[()]
    copy = array.copy()
    copy.flags.writeable = layout != "readonly"
    return copy


def equal(got: Any, expected: Array) -> bool:
    """Return whether shapes and all elements are equal."""
    got = np.asarray(got)
    return got.shape == expected.shape and bool(np.all(got == expected))
