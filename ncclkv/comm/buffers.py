"""Buffers in host memory: their allocation, and checks of the arguments of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ncclkv.arrays.dtypes import check_dtype
from ncclkv.arrays.memory import address
from ncclkv.comm.types import ALIGNMENT, OPS, Buffer
from ncclkv.errors import NotSupported, UsageError


class CheckMemory(Protocol):
    """Function that refuses a buffer of another kind of memory than a communicator's."""

    def __call__(self, buffer: Any, to_write: bool) -> None: ...


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


def check_pair(
    send: Any, receive: Any, count: int, shift: int, check_memory: CheckMemory = check_host
) -> None:
    """Refuse arrays that a collective cannot send and receive.

    Arrays that overlap are refused, too, unless `receive` begins `shift` elements after `send`, or
    `send` so many elements after `receive` if `shift` is negative.
    """
    check_memory(send, to_write=False)
    check_memory(receive, to_write=True)
    check_buffers(send, receive, count)
    part, whole = (receive, send) if shift >= 0 else (send, receive)
    check_places(part, whole, abs(shift) * send.itemsize)


def check_counts(counts: Sequence[int], size: int) -> None:
    """Refuse counts of elements that are not one for each rank."""
    if len(counts) != size or min(counts) < 0:
        raise UsageError(f"counts={counts!r}: give {size} counts, one for each rank, none negative")


def check_in_place(send: Buffer, part: Buffer) -> None:
    """Refuse a `send` that is not this rank's part of memory that the ranks of a node share."""
    if send.size and address(send) != address(part):
        raise UsageError(
            "receive is memory that the ranks of this node share, and send is not this rank's part "
            "of it; write the part there, and pass it as send"
        )


def check_exchange(
    send: Sequence[Any], receive: Sequence[Any], rank: int, size: int, check_memory: CheckMemory
) -> None:
    """Refuse buffers that cannot be sent to all ranks and received from all.

    Buffers that are sent may overlap each other; this rank's own pair may be the same memory.
    """
    for name, buffers in (("send", send), ("receive", receive)):
        if len(buffers) != size:
            raise UsageError(f"{name} has {len(buffers)} buffers; give {size}, one for each rank")
    for data, into in zip(send, receive, strict=True):
        check_memory(data, to_write=False)
        check_memory(into, to_write=True)
        check_buffers(data, into, into.size)
        if data.dtype != send[0].dtype:
            raise UsageError(f"one buffer is {data.dtype} and one {send[0].dtype}; give one dtype")
    check_pair(send[rank], receive[rank], send[rank].size, 0, check_memory)
    extents = [(address(each), each.nbytes, True) for each in receive]
    in_place = address(send[rank]) == address(receive[rank])
    others = [each for peer, each in enumerate(send) if not in_place or peer != rank]
    extents += [(address(each), each.nbytes, False) for each in others]
    written = read = 0
    for start, nbytes, writes in sorted(extent for extent in extents if extent[1]):
        if start < written or (writes and start < read):
            raise UsageError(
                "a buffer to receive into overlaps another buffer; pass buffers that lie apart"
            )
        written = max(written, start + nbytes) if writes else written
        read = max(read, start + nbytes)


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
