"""Buffers in host memory: their allocation, and checks of the arguments of collectives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncclkv.arrays.dtypes import check_dtype
from ncclkv.arrays.memory import address
from ncclkv.comm.types import ALIGNMENT, OPS, Buffer
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
        raise UsageError(f"root={root!r} is not a rank: give an int from 0 to {size - 1}")


def check_host(buffer: Any, to_write: bool) -> None:
    """Refuse what no message can be read from or written into."""
    if not isinstance(buffer, np.ndarray):
        raise UsageError(f"a {type(buffer).__name__} is no buffer; pass a NumPy array")
    check_dtype(buffer.dtype, "a buffer")
    if to_write and not buffer.flags.writeable:
        raise UsageError("the array to receive into is read-only; pass one that can be written")


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


def check_pair(send: Any, receive: Any, count: int, shift: int = 0) -> None:
    """Refuse what host memory cannot send and receive.

    Arrays that overlap are refused, too, unless `receive` begins `shift` bytes after `send`.
    """
    check_host(send, to_write=False)
    check_host(receive, to_write=True)
    check_buffers(send, receive, count)
    check_places(receive, send, shift)


def check_places(part: Any, whole: Any, offset: int) -> None:
    """Refuse a `part` that overlaps `whole` other than as its bytes from `offset` on."""
    apart = address(part) - address(whole)
    if apart != offset and -part.nbytes < apart < whole.nbytes:
        raise UsageError(
            f"send and receive overlap: one begins {apart} bytes after the other, where {offset} "
            f"bytes are allowed, or no overlap at all; pass a copy"
        )


def check_color(color: Any, key: Any) -> None:
    """Refuse a color or key of a split that is no int; a color may be None."""
    for name, value in (("color", color), ("key", key)):
        if not isinstance(value, (int, np.integer)) and not (name == "color" and value is None):
            raise UsageError(f"split: {name}={value!r} is not an int")
