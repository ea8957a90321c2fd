"""Python numbers, which stand for arrays without dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.dtypes import DType
from ncclkv.errors import DTypeMismatch

_DTYPES: tuple[tuple[type, DType], ...] = (
    (bool, np.dtype(np.bool_)),  # before int, which is its base
    (int, np.dtype(np.int64)),
    (float, np.dtype(np.float64)),
    (complex, np.dtype(np.complex128)),
)

# A number of a type is also a number of each later type.
_ORDER = (bool, int, float, complex)

# bfloat16 is of kind "V" to NumPy.
_TYPES: dict[str, type] = {
    "b": bool,
    "u": int,
    "i": int,
    "f": float,
    "V": float,
    "c": complex,
}


def is_number(x: Any) -> bool:
    """Return whether `x` is a Python number.

    NumPy's scalars are arrays: they have a dtype of their own.

    Examples
    --------
    >>> is_number(1.5), is_number(True), is_number(np.float64(1.5)), is_number("1.5")
    (True, True, False, False)
    """
    return isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic)


def dtype_of(number: complex) -> DType:
    """Return the dtype of an array made of a Python number, on every system.

    Examples
    --------
    >>> dtype_of(True), dtype_of(3), dtype_of(0.5), dtype_of(2j)
    (dtype('bool'), dtype('int64'), dtype('float64'), dtype('complex128'))
    """
    return next(dtype for kind, dtype in _DTYPES if isinstance(number, kind))


def as_array(number: complex, dtype: DType, what: str) -> NDArray[Any]:
    """Return an array of shape () with a Python number, rounded as `dtype` rounds.

    Parameters
    ----------
    number : bool, int, float or complex
    dtype : numpy.dtype
        One that stores can hold.
    what : str
        The call and the key, which begin an error's text.

    Raises
    ------
    DTypeMismatch
        When the dtype has no numbers of this kind, as integers have no fractions, or the number
        is beyond the range of the dtype.

    Examples
    --------
    >>> as_array(3, np.dtype("float32"), "push of key 's'")
    array(3., dtype=float32)
    >>> as_array(0.5, np.dtype("int64"), "push of key 's'")
    Traceback (most recent call last):
        ...
    ncclkv.errors.DTypeMismatch: push of key 's': a Python float is no number of dtype int64; \
convert it, or use float64
    """
    own, name, wanted = dtype_of(number), type(number).__name__, _TYPES[dtype.kind]
    if _ORDER.index(_TYPES[own.kind]) > _ORDER.index(wanted):
        raise DTypeMismatch(
            f"{what}: a Python {name} is no number of dtype {dtype}; convert it, or use {own}"
        )
    try:
        converted = wanted(number)
    except OverflowError as error:
        raise DTypeMismatch(
            f"{what}: the Python {name} is beyond the range of {dtype} ({error}); use a smaller one"
        ) from error
    if wanted is int:
        limits = np.iinfo(dtype)
        if not limits.min <= converted <= limits.max:  # NumPy 1 would wrap it
            raise DTypeMismatch(
                f"{what}: the Python {name} is beyond the range of {dtype}, {limits.min} to "
                f"{limits.max}; use a wider dtype"
            )
    with np.errstate(all="ignore"):
        return np.array(converted, dtype)
