"""Conversion between arrays and the tensors of a safetensors file.

safetensors has no bfloat16 and no complex dtype for NumPy.  A bfloat16 is stored as uint16, and a
complex element as a pair of floats along a last axis.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ncclkv.arrays.dtype_table import TABLE
from ncclkv.arrays.dtypes import SUPPORTED, dtype_name, named
from ncclkv.checkpoint.strict_json import DamagedCheckpoint
from ncclkv.errors import NotSupported

Array = NDArray[Any]
T = TypeVar("T")

# Limits of NumPy's arrays.
_AXES = 32
_BYTES = 2**62

# For each dtype that safetensors lacks: the dtype of its parts, and the parts of an element.
_STORED_AS = {row.name: row.stored_as for row in TABLE if row.stored_as is not None}


class Tensor(NamedTuple):
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Count of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize


def tensor(shape: Any, dtype: Any) -> Tensor:
    """Return the tensor that a file describes.

    Raises
    ------
    DamagedCheckpoint
        When no array can have this shape and dtype.
    NotSupported
        When the dtype is bfloat16 and ``ml_dtypes`` is not installed.
    """
    if type(shape) is not list or any(type(axis) is not int or axis < 0 for axis in shape):
        raise DamagedCheckpoint(f"{shape!r:.60} is not a shape")
    if not isinstance(dtype, str) or dtype not in SUPPORTED:
        raise DamagedCheckpoint(f"{dtype!r:.60} is not a dtype of a store")
    found = named(dtype, "load")
    whole = math.prod(axis or 1 for axis in shape) * found.itemsize
    if len(shape) > _AXES or whole > _BYTES:
        raise DamagedCheckpoint(f"{shape!s:.60} is a shape beyond the limits of NumPy")
    return Tensor(tuple(shape), found)


def check_library() -> None:
    """Raise NotSupported if safetensors is missing or the machine is big-endian.

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
        raise NotSupported("checkpoints need a little-endian machine; this machine is big-endian")


def encode(arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a safetensors file with the given arrays."""
    from safetensors.numpy import save

    blob: bytes = save({name: _stored(array) for name, array in arrays.items()})
    return blob


def _stored(array: Array) -> Array:
    """Return the array in its stored form, in C order."""
    form = _form(Tensor(array.shape, array.dtype))
    flat = np.asarray(array, order="C").reshape(-1)
    return flat.view(form.dtype).reshape(form.shape)


def _form(wanted: Tensor) -> Tensor:
    """Return the shape and dtype in which a tensor is stored."""
    name = dtype_name(wanted.dtype)
    if name not in _STORED_AS:
        return wanted
    part, count = _STORED_AS[name]
    return Tensor((*wanted.shape, count) if count > 1 else wanted.shape, np.dtype(part))


def decode(blob: bytes, wanted: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return the arrays of a safetensors file, read-only.

    Parameters
    ----------
    blob : bytes
        The whole file.
    wanted : mapping of Tensor by name
        Tensors that the file may hold.

    Raises
    ------
    DamagedCheckpoint
        When the file is no safetensors file, or holds another tensor.
    """
    from safetensors.numpy import load

    try:
        found = load(blob)
    except Exception as error:
        # safetensors raises errors of many types: its own, KeyError for a dtype, ValueError.
        raise DamagedCheckpoint(f"it is not a safetensors file ({error})") from error
    arrays = {}
    for name, array in sorted(found.items()):
        if name not in wanted:
            raise DamagedCheckpoint(
                f"it has a tensor {name!r:.60}, which checkpoint.json does not list"
            )
        arrays[name] = _array(name, array, wanted[name])
    return arrays


def _array(name: str, stored: Array, wanted: Tensor) -> Array:
    """Return a stored tensor as an array of the wanted shape and dtype."""
    form = _form(wanted)
    if stored.shape != form.shape or stored.dtype != form.dtype:
        raise DamagedCheckpoint(
            f"tensor {name} is {stored.dtype} {stored.shape}, and checkpoint.json has "
            f"{form.dtype} {form.shape} for it"
        )
    if form.dtype == np.bool_ and (stored.view(np.uint8) > 1).any():
        raise DamagedCheckpoint(f"tensor {name} of bool has a byte other than 0 and 1")
    return stored.reshape(-1).view(wanted.dtype).reshape(wanted.shape)


def batches(items: Iterable[T], nbytes: Callable[[T], int], full: int) -> Iterator[list[T]]:
    """Yield items in lists; a list ends with the item at which it has `full` bytes or more."""
    batch: list[T] = []
    held = 0
    for item in items:
        batch.append(item)
        held += nbytes(item)
        if held >= full:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
