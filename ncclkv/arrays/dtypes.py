"""The dtypes that stores hold."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.dtype_table import TABLE
from ncclkv.errors import DTypeMismatch, NotSupported

DType = np.dtype[Any]

SUPPORTED = tuple(row.name for row in TABLE)
"""Names of the dtypes that stores hold; bfloat16 is the dtype of ``ml_dtypes``."""

_NATIVE: dict[DType, DType] = {
    np.dtype(row.name): np.dtype(row.name) for row in TABLE if not row.package
}
_OF_ML_DTYPES = tuple(row.name for row in TABLE if row.package == "ml_dtypes")
_LOW_PRECISION = {(row.kind, row.itemsize) for row in TABLE if row.is_low_precision}


def check_dtype(dtype: DType, what: str) -> DType:
    """Return the native-endian equivalent of a dtype that stores can hold.

    Parameters
    ----------
    dtype : numpy.dtype
        Of any byte order.
    what : str
        The call and the key, which begin an error's text.

    Returns
    -------
    numpy.dtype
        One of `SUPPORTED`, in the machine's byte order.

    Raises
    ------
    DTypeMismatch
        When `dtype` is not one of `SUPPORTED`.

    Examples
    --------
    >>> check_dtype(np.dtype(">f4"), "init of key 3")
    dtype('float32')
    >>> check_dtype(np.dtype("U5"), "init of key 3")
    Traceback (most recent call last):
        ...
    ncclkv.errors.DTypeMismatch: init of key 3: no store holds dtype <U5; convert with .astype \
to one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, \
float32, float64, complex64, complex128
    """
    native = _NATIVE.get(dtype)
    if native is not None:
        return native
    # The kind is checked first: NumPy's StringDType raises in `newbyteorder`.
    swapped = _NATIVE.get(dtype.newbyteorder("=")) if dtype.kind in "biufc" else None
    if swapped is not None:
        return swapped
    # An array of bfloat16 exists only if ml_dtypes is loaded, so it is not imported here.
    ml_dtypes = sys.modules.get("ml_dtypes")
    if ml_dtypes is not None:
        for name in _OF_ML_DTYPES:
            if dtype == np.dtype(getattr(ml_dtypes, name)):
                return dtype
    raise DTypeMismatch(
        f"{what}: no store holds dtype {dtype}; convert with .astype to one of "
        + ", ".join(SUPPORTED)
    )


def is_low_precision(dtype: DType) -> bool:
    """Return whether sums of a supported `dtype` are made in float32: float16 and bfloat16.

    Examples
    --------
    >>> is_low_precision(np.dtype("float16")), is_low_precision(np.dtype("int16"))
    (True, False)
    """
    # Not by name: NumPy makes the name in Python at each call.
    return (dtype.kind, dtype.itemsize) in _LOW_PRECISION


def real_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of a contiguous array as real numbers: each complex number is a pair.

    Examples
    --------
    >>> real_numbers(np.array([1 + 2j]))
    array([1., 2.])
    """
    if array.dtype.kind != "c":
        return array
    view: NDArray[Any] = array.view(f"f{array.dtype.itemsize // 2}")
    return view


def dtype_name(dtype: DType) -> str:
    """Return the name of a dtype, for error texts and comparisons between ranks.

    Examples
    --------
    >>> dtype_name(np.dtype("<f8"))
    'float64'
    """
    return str(dtype.name)


def named(name: str, what: str) -> DType:
    """Return the dtype of a name of `SUPPORTED`; bfloat16 needs ``ml_dtypes``.

    Raises
    ------
    NotSupported
        When ``ml_dtypes`` is needed and not installed.

    Examples
    --------
    >>> named("float16", "load")
    dtype('float16')
    """
    if name not in _OF_ML_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise NotSupported(
            f"{what}: {name} in host memory needs the package ml_dtypes; "
            "install it with: pip install ml_dtypes"
        ) from error
    dtype: DType = np.dtype(getattr(ml_dtypes, name))
    return dtype


def bfloat16(what: str) -> DType:
    """Return NumPy's bfloat16, which needs ``ml_dtypes``.

    Raises
    ------
    NotSupported
        When ``ml_dtypes`` is not installed.
    """
    return named("bfloat16", what)
