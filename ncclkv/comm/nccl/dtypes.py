"""Arrays, dtypes and ops as arguments of NCCL, and the check that an array is on a GPU.

NCCL has no bools, complex numbers and 16-bit integers.  Bools are moved as bytes: their sum is a
logical or, which is a maximum.  Complex numbers are pairs of reals.  16-bit integers can be moved,
as bytes, but not reduced.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ncclkv.arrays.dtype_table import TABLE
from ncclkv.arrays.memory import address
from ncclkv.comm.buffers import check_op
from ncclkv.comm.nccl.binding import DTYPES, OPS
from ncclkv.comm.types import Buffer
from ncclkv.errors import NotSupported, UsageError


@dataclass(frozen=True)
class NcclType:
    """NCCL's values of a dtype and an op."""

    dtype: int
    op: int
    factor: int
    """Count of NCCL's elements for each element of the array."""


# Dtype of NCCL with the same bytes, and the count of its elements for an element of NumPy.
_ALIKE = {row.name: row.moved_as for row in TABLE if row.moved_as is not None}

_OPS_OF_BOOL = {"sum": "max", "max": "max", "min": "min", "prod": "min"}


@cache
def movement(dtype: np.dtype[Any]) -> NcclType:
    """Return the values for moving elements of `dtype`, a dtype that stores can hold.

    Examples
    --------
    >>> movement(np.dtype("int16"))
    NcclType(dtype=1, op=0, factor=2)
    """
    name, factor = _ALIKE.get(dtype.name, (dtype.name, 1))
    return NcclType(DTYPES[name], OPS["sum"], factor)


@lru_cache(maxsize=256)
def reduction(dtype: np.dtype[Any], op: str, what: str = "") -> NcclType:
    """Return the values for reducing elements of `dtype`, a dtype that stores can hold.

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


def divides(dtype: np.dtype[Any], op: str) -> bool:
    """Return whether an average is a sum that this package divides.

    NCCL multiplies the values of its average before it adds them, on roads that leave out the sums
    of the NVLink switch.  float16 is left to NCCL: a sum may be infinite where its average is not.

    Examples
    --------
    >>> divides(np.dtype("float32"), "avg"), divides(np.dtype("float16"), "avg")
    (True, False)
    """
    return op == "avg" and dtype.kind not in "iu" and dtype != np.float16


def wraps(dtype: np.dtype[Any], op: str) -> bool:
    """Return whether NCCL's result may be wrong, because the sum does not fit the dtype.

    Examples
    --------
    >>> wraps(np.dtype("int8"), "avg"), wraps(np.dtype("int8"), "sum")
    (True, False)
    """
    return op == "avg" and dtype.kind in "iu" and dtype.itemsize < 8


def move_arguments(send: Buffer, receive: Buffer, count: int) -> tuple[int, int, int, int]:
    """Return addresses, count and dtype of a collective of `count` elements, for a binding."""
    nccl_type = movement(send.dtype)
    return address(send), address(receive), count * nccl_type.factor, nccl_type.dtype


def reduce_arguments(
    send: Buffer, receive: Buffer, count: int, op: str
) -> tuple[int, int, int, int, int]:
    """Return the same, and the op, of a reduction."""
    nccl_type = reduction(send.dtype, op)
    count *= nccl_type.factor
    return address(send), address(receive), count, nccl_type.dtype, nccl_type.op


def check_device(buffer: Buffer) -> None:
    """Raise `UsageError` for an array in host memory."""
    if isinstance(buffer, np.ndarray):
        raise UsageError(
            "this communicator moves arrays in a GPU's memory and was given a NumPy array; pass "
            "cupy.asarray(array), or use a communicator of hosts"
        )
