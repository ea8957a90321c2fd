"""Arrays as the tensors of a safetensors file, and back.

Those whose dtype safetensors does not have for NumPy are stored as what they consist of: bfloat16
as uint16, complex numbers as pairs of floats along one more axis.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.dtypes import SUPPORTED, bfloat16, dtype_name
from ncclkv.checkpoint.strict_json import Unsound
from ncclkv.errors import NotSupported

Array = NDArray[Any]

# NumPy's own limit, and that of sizes in bytes everywhere.
_MOST_AXES = 32
_MOST_BYTES = 2**62

# Of dtypes that are stored as others: these, and how many of them make one.
_STORED_AS = {"bfloat16": ("uint16", 1), "complex64": ("float32", 2), "complex128": ("float64", 2)}


class Tensor(NamedTuple):
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def tensor(shape: Any, dtype: Any) -> Tensor:
    """A tensor as a file describes it.

    Raises
    ------
    Unsound
        When there can be no such array.
    NotSupported
        When it is of bfloat16 and ``ml_dtypes`` is not installed.
    """
    if type(shape) is not list or any(type(axis) is not int or axis < 0 for axis in shape):
        raise Unsound(f"{shape!r:.60} is not a shape")
    if not isinstance(dtype, str) or dtype not in SUPPORTED:
        raise Unsound(f"{dtype!r:.60} is not a dtype that stores hold")
    found = bfloat16("load") if dtype == "bfloat16" else np.dtype(dtype)
    whole = math.prod(axis or 1 for axis in shape) * found.itemsize
    if len(shape) > _MOST_AXES or whole > _MOST_BYTES:
        raise Unsound(f"{shape!s:.60} is too large a shape")
    return Tensor(tuple(shape), found)


def check_library() -> None:
    """Refuse to go on without safetensors.

    Raises
    ------
    NotSupported
    """
    try:
        import safetensors.numpy  # noqa: F401
    except ImportError as error:
        raise NotSupported(
            "checkpoints need the package safetensors; install it with: "
            "pip install 'ncclkv[checkpoint]'"
        ) from error
    if sys.byteorder != "little":
        raise NotSupported("checkpoints are of little-endian machines; this one is big-endian")


def encode(arrays: Mapping[str, Array]) -> bytes:
    """A safetensors file of some arrays by name."""
    from safetensors.numpy import save

    blob: bytes = save({name: _stored(array) for name, array in arrays.items()})
    return blob


def _stored(array: Array) -> Array:
    """The array as what it is stored as, in C order."""
    plain = _form(Tensor(array.shape, array.dtype))
    flat = np.asarray(array, order="C").reshape(-1)
    return flat.view(plain.dtype).reshape(plain.shape)


def _form(wanted: Tensor) -> Tensor:
    """Shape and dtype that a tensor has in its file."""
    name = dtype_name(wanted.dtype)
    if name not in _STORED_AS:
        return wanted
    part, count = _STORED_AS[name]
    return Tensor((*wanted.shape, count) if count > 1 else wanted.shape, np.dtype(part))


def decode(blob: bytes, wanted: Mapping[str, Tensor]) -> dict[str, Array]:
    """The arrays of a safetensors file, read-only.

    Parameters
    ----------
    blob : bytes
        The whole file.
    wanted : mapping of Tensor by name
        What may be in it.

    Raises
    ------
    Unsound
        When it is no such file, or has something else in it.
    """
    from safetensors.numpy import load

    try:
        found = load(blob)
    except Exception as error:
        # Its own error, KeyError for a dtype, ValueError for a shape: all say the same.
        raise Unsound(f"it is not a safetensors file ({error})") from error
    arrays = {}
    for name, array in sorted(found.items()):
        if name not in wanted:
            raise Unsound(f"it has a tensor {name!r:.60}, of which checkpoint.json says nothing")
        arrays[name] = _array(name, array, wanted[name])
    return arrays


def _array(name: str, stored: Array, wanted: Tensor) -> Array:
    """A tensor as the array that it is to be."""
    form = _form(wanted)
    if stored.shape != form.shape or stored.dtype != form.dtype:
        raise Unsound(
            f"tensor {name} is {stored.dtype} {stored.shape}, and checkpoint.json says "
            f"{form.dtype} {form.shape}"
        )
    if form.dtype == np.bool_ and (stored.view(np.uint8) > 1).any():
        raise Unsound(f"tensor {name} is of bool, and holds something else")
    return stored.reshape(-1).view(wanted.dtype).reshape(wanted.shape)
