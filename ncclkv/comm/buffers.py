"""Host memory for buffers, and which ops they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.comm.base import ALIGNMENT, OPS, Buffer
from ncclkv.errors import NotSupported, UsageError


def allocate(nbytes: int) -> Buffer:
    """Zeroed uint8 host memory, aligned to `ALIGNMENT` bytes."""
    space = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -space.ctypes.data % ALIGNMENT
    return space[start : start + nbytes]


def check_op(op: str, dtype: np.dtype[Any], what: str = "") -> None:
    """Refuse an `op` that is unknown, or has no meaning for `dtype`; `what` begins the message."""
    if op not in OPS:
        raise UsageError(f"{what}unknown op {op!r}; the ops are {', '.join(OPS)}")
    if dtype.kind == "c" and op in ("max", "min"):
        raise NotSupported(f"{what}{op} of {dtype}: complex numbers have no order; use sum or avg")
    if dtype.kind == "b" and op == "avg":
        raise NotSupported(f"{what}avg of bool: use sum, which is a logical or, or push integers")


def check_root(root: int | None, size: int) -> None:
    """Refuse a root that is no rank; None stands for all ranks."""
    whole = isinstance(root, (int, np.integer)) and not isinstance(root, bool)
    if root is not None and not (whole and 0 <= root < size):
        raise UsageError(f"root={root!r} is not a rank: ranks go from 0 to {size - 1}")


def check_buffer(buffer: Buffer) -> None:
    """Refuse an array whose bytes do not lie in one row."""
    if buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise UsageError(
            f"an array of shape {buffer.shape} and strides {buffer.strides} is not one-dimensional "
            f"and contiguous; pass array.reshape(-1), or a copy"
        )


def check_buffers(send: Buffer, receive: Buffer, count: int) -> None:
    """Refuse arrays of different dtypes, and a `receive` of other than `count` elements."""
    check_buffer(send)
    check_buffer(receive)
    if receive.dtype != send.dtype:
        raise UsageError(f"receive is {receive.dtype} and send {send.dtype}; give them one dtype")
    if receive.size != count:
        raise UsageError(
            f"receive has {receive.size} elements where {count} are needed for a send of "
            f"{send.size}; make it as long"
        )
