"""Dtypes and ops of NumPy as numbers of NCCL, and checks of the arrays of a collective.

NCCL has no bools, complex numbers and 16-bit integers.  Bools are moved as bytes: their sum is a
logical or, which is a maximum.  Complex numbers are pairs of reals.  16-bit integers can be moved,
as bytes, but not reduced.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ncclkv.comm.buffers import check_buffers, check_op
from ncclkv.comm.nccl.binding import DTYPES, OPS
from ncclkv.comm.types import Buffer
from ncclkv.errors import NotSupported, UsageError


@dataclass(frozen=True)
class NcclType:
    """Arguments of a binding for a dtype and an op."""

    dtype: int
    op: int
    factor: int
    """NCCL's elements for each of the array's."""


# Dtype of NCCL's with the same bytes, and the number of its elements to one of NumPy's.
_ALIKE = {
    "bool": ("uint8", 1),
    "int16": ("uint8", 2),
    "uint16": ("uint8", 2),
    "complex64": ("float32", 2),
    "complex128": ("float64", 2),
}

_OPS_OF_BOOL = {"sum": "max", "max": "max", "min": "min", "prod": "min"}


@cache
def movement(dtype: np.dtype[Any]) -> NcclType:
    """Return the arguments for moving elements of `dtype`, one that stores can hold.

    Examples
    --------
    >>> movement(np.dtype("int16"))
    NcclType(dtype=1, op=0, factor=2)
    """
    name, factor = _ALIKE.get(dtype.name, (dtype.name, 1))
    return NcclType(DTYPES[name], OPS["sum"], factor)


@lru_cache(maxsize=256)
def reduction(dtype: np.dtype[Any], op: str, what: str = "") -> NcclType:
    """Return the arguments for reducing elements of `dtype`, one that stores can hold.

    Parameters
    ----------
    dtype : dtype
    op : str
    what : str
        Begin of an error's message.

    Raises
    ------
    UsageError
        When `op` is unknown.
    NotSupported
        When NCCL cannot reduce the dtype by the op.

    Examples
    --------
    >>> reduction(np.dtype("complex64"), "sum")
    NcclType(dtype=7, op=0, factor=2)
    >>> reduction(np.dtype("int16"), "max")
    Traceback (most recent call last):
        ...
    ncclkv.errors.NotSupported: max of int16: NCCL reduces no 16-bit integers; use \
.astype('int32')
    """
    check_op(op, dtype, what)
    if dtype.kind in "iu" and dtype.itemsize == 2:
        wider = f"{dtype.name.removesuffix('16')}32"
        raise NotSupported(
            f"{what}{op} of {dtype}: NCCL reduces no 16-bit integers; use .astype({wider!r})"
        )
    if dtype.kind == "c" and op == "prod":
        raise NotSupported(
            f"{what}prod of {dtype}: NCCL multiplies real numbers only; use sum or avg"
        )
    moved = movement(dtype)
    name = _OPS_OF_BOOL[op] if dtype.kind == "b" else op
    return NcclType(moved.dtype, OPS[name], moved.factor)


def check_device(buffer: Buffer) -> None:
    """Raise `UsageError` for an array in host memory."""
    if isinstance(buffer, np.ndarray):
        raise UsageError(
            "this communicator moves arrays in a GPU's memory and was given a NumPy array; pass "
            "cupy.asarray(array), or use a communicator of hosts"
        )


def check_sides(send: Buffer, receive: Buffer, count: int) -> None:
    """Raise `UsageError` unless a collective can take the arrays.

    `receive` must have `count` elements.
    """
    check_device(send)
    check_device(receive)
    check_buffers(send, receive, count)
