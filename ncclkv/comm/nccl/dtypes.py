"""How arrays travel: NCCL's numbers for a NumPy dtype and op, and which places a buffer may have.

What NCCL has no dtype for goes as one that it has: bools as bytes (their sum is a logical or, which
is a maximum), complex numbers as pairs of reals.  16-bit integers can be moved, as bytes, and not
reduced.
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
    """What a binding is told of an array and an op."""

    dtype: int
    op: int
    factor: int
    """NCCL's elements for each of the array's."""


# What has the same bytes, and how many of them to an element.
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
    """How a `dtype` that stores can hold is copied from rank to rank.

    Examples
    --------
    >>> movement(np.dtype("int16"))
    NcclType(dtype=1, op=0, factor=2)
    """
    name, factor = _ALIKE.get(dtype.name, (dtype.name, 1))
    return NcclType(DTYPES[name], OPS["sum"], factor)


@lru_cache(maxsize=256)
def reduction(dtype: np.dtype[Any], op: str, what: str = "") -> NcclType:
    """How a `dtype` that stores can hold is reduced; `what` begins the message of an error.

    Raises
    ------
    UsageError
        When there is no such `op`.
    NotSupported
        When NCCL cannot do it.

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
    """Refuse an array in host memory."""
    if isinstance(buffer, np.ndarray):
        raise UsageError(
            "this communicator moves arrays in a GPU's memory and was given a NumPy array; pass "
            "cupy.asarray(array), or use a communicator of hosts"
        )


def check_sides(send: Buffer, receive: Buffer, count: int) -> None:
    """Refuse arrays that a collective cannot take; `receive` has `count` elements."""
    check_device(send)
    check_device(receive)
    check_buffers(send, receive, count)
