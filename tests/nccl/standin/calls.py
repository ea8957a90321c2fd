"""One call of a collective: the bytes that it reads and writes, and NCCL's rules for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.nccl.standin.device import DEFAULT_STREAM
from tests.nccl.standin.errors import RefusedByStandIn
from tests.nccl.standin.memory import Memory
from tests.nccl.standin.order import Span

# Dtypes by their constants in nccl.h; the package's own tables are under test.
DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(kind)
    for kind in (
        np.int8,
        np.uint8,
        np.int32,
        np.uint32,
        np.int64,
        np.uint64,
        np.float16,
        np.float32,
        np.float64,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
    )
)
OPS = ("sum", "prod", "max", "min", "avg")

SENT_BY_ALL = ("reduce_scatter",)
RECEIVED_FROM_ALL = ("all_gather",)
TO_ONE = ("send", "receive")


@dataclass(frozen=True)
class Call:
    """A collective of one rank; the root of a message is the rank at its other end."""

    kind: str
    send: int
    receive: int
    count: int
    dtype: int
    op: int | None
    root: int | None
    stream: int

    def __str__(self) -> str:
        """Return the call as every rank must make it."""
        words = [f"count={self.count}", f"dtype={dtype_of(self)}"]
        if self.op is not None:
            words.append(f"op={OPS[self.op]}")
        if self.root is not None:
            words.append(f"{'peer' if self.kind in TO_ONE else 'root'}={self.root}")
        return f"{self.kind}({', '.join(words)})"


@dataclass(frozen=True)
class Placed:
    """A call whose addresses were found in the device's memory."""

    call: Call
    send: Span
    receive: Span
    reads: bool
    writes: bool

    @property
    def spans(self) -> list[Span]:
        """Return the memory that the call reads and writes on this rank."""
        return [self.send] * self.reads + [self.receive] * self.writes

    def line(self, stream: str) -> str:
        """Return the call as a line of the log."""
        sides = [f"{span.allocation.name}+{span.lo}" for span in (self.send, self.receive)]
        return f"{self.call} {sides[0]} -> {sides[1]} on {stream}"


def dtype_of(call: Call) -> np.dtype[Any]:
    """Return the dtype of a call's constant."""
    if not 0 <= call.dtype < len(DTYPES):
        raise RefusedByStandIn(f"{call.kind}: dtype {call.dtype} is none of NCCL's, 0 to 11")
    return DTYPES[call.dtype]


def place(call: Call, memory: Memory, rank: int, size: int) -> Placed:
    """Find a call's memory, and refuse errors that NCCL would not detect."""
    check_codes(call, size)
    if call.stream == DEFAULT_STREAM:
        raise RefusedByStandIn(f"{call} is on the default stream, 0; give it a stream of its own")
    part = call.count * dtype_of(call).itemsize
    sent = part * (size if call.kind in SENT_BY_ALL else 1)
    whole = part * (size if call.kind in RECEIVED_FROM_ALL else 1)
    receives = call.kind != "send" and (call.kind != "reduce" or call.root == rank)
    reads = call.kind != "receive" and (call.kind != "broadcast" or call.root == rank)
    send = find(call, memory, call.send, 0 if call.kind == "receive" else sent, False)
    receive = find(call, memory, call.receive, whole if receives else 0, True)
    placed = Placed(call, send, receive, reads, receives)
    check_in_place(placed, rank, part)
    return placed


def check_codes(call: Call, size: int) -> None:
    """Refuse constants without a meaning."""
    dtype_of(call)
    if call.op is not None and not 0 <= call.op < len(OPS):
        raise RefusedByStandIn(f"{call.kind}: op {call.op} is none of NCCL's, 0 to 4")
    if call.op is not None and call.dtype > 9:
        raise RefusedByStandIn(f"{call}: the stand-in moves 8-bit floats, and reduces none")
    if call.root is not None and not 0 <= call.root < size:
        raise RefusedByStandIn(f"{call}: the root is none of {size} ranks")
    if call.count < 0:
        raise RefusedByStandIn(f"{call}: the count is negative")


def find(call: Call, memory: Memory, address: int, nbytes: int, writes: bool) -> Span:
    """Return the bytes of one buffer of a call, which must lie in one live allocation."""
    if nbytes and address % dtype_of(call).itemsize:
        raise RefusedByStandIn(f"{call}: the address {address:#x} is not a multiple of an element")
    allocation, offset = memory.find(address, nbytes, str(call))
    return Span(allocation, offset, offset + nbytes, writes)


def check_in_place(placed: Placed, rank: int, part: int) -> None:
    """Refuse overlapping buffers, except NCCL's in-place forms."""
    call, send, receive = placed.call, placed.send, placed.receive
    if not (placed.reads and placed.writes and send.overlaps(receive)):
        return
    shift = {"reduce_scatter": rank * part, "all_gather": -rank * part}.get(call.kind, 0)
    if receive.lo - send.lo != shift:
        raise RefusedByStandIn(
            f"{call}: receive begins {receive.lo - send.lo} bytes after send and overlaps it; on "
            f"rank {rank} it may begin {shift} bytes after it, or must lie apart"
        )


def check_group(before: Sequence[Placed], new: Placed) -> None:
    """Refuse a call of a group that shares memory with another, or is on another stream."""
    for old in before:
        for mine in new.spans:
            for theirs in old.spans:
                if mine.conflicts(theirs):
                    raise RefusedByStandIn(
                        f"in one group, which has no order, {old.call} {theirs} and {new.call} "
                        f"{mine}; put them in two groups"
                    )
        if old.call.stream != new.call.stream:
            raise RefusedByStandIn(
                f"{new.call} is on another stream than {old.call} of its group: each of the two "
                f"would wait for all of both; use one"
            )
