"""The narrow interface to NCCL: calls with raw pointers, and NCCL's numbers for dtypes and ops.

Buffers and streams are addresses; nothing is checked on the way down.  Counts are in elements of
the dtype, and for `reduce_scatter` and `all_gather` in elements *per rank*.  All calls return at
once but `create`, `connect`, `destroy` and `abort`: what they start runs in the order of its
stream.

Every failure is one of `ncclkv.errors`, with the library's version and the call in its message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Handle = Any
"""A communicator of the binding's."""

DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
"""NCCL's numbers of the dtypes that it knows, by NumPy's names (``nccl.h``, ncclDataType_t)."""

OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""NCCL's numbers of the ops (``nccl.h``, ncclRedOp_t)."""


def version_text(code: int) -> str:
    """Write NCCL's version code as people do.

    Examples
    --------
    >>> version_text(23203)
    '2.32.3'
    """
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


class Binding(Protocol):
    """NCCL, or what stands in for it under test."""

    name: str
    """For messages, such as ``NCCL``."""

    uncaptured: str
    """Why its collectives cannot be part of a graph; empty when they can."""

    def version(self) -> int:
        """The library's code, such as 23203 for 2.32.3."""

    def unique_id(self) -> bytes:
        """128 bytes that one rank makes and all give to `create`; good for one communicator."""

    def create(self, size: int, unique_id: bytes, rank: int, look: Callable[[], None]) -> Handle:
        """Join the communicator of `unique_id`; returns when all `size` ranks have.

        ``look()`` is called now and then meanwhile, and raises when a rank cannot come any more.
        """

    def connect(
        self, comm: Handle, peers: Sequence[int], scratch: tuple[int, int], stream: int
    ) -> None:
        """Connect this rank with `peers`, all others, for messages; returns when they have come.

        `scratch` is where a byte to send lies, and where one byte a peer is received.
        """

    def destroy(self, comm: Handle) -> None:
        """Free a communicator that is idle on every rank; every rank must come."""

    def abort(self, comm: Handle) -> None:
        """Stop what is in flight and free the communicator, without the other ranks."""

    def async_error(self, comm: Handle) -> str | None:
        """What went wrong since the last look, in words; None when nothing did."""

    def group_start(self) -> None:
        """Hold the calls that follow back, until the `group_end` that belongs to this."""

    def group_end(self) -> None:
        """Start what the outermost group held back, in no order among themselves."""

    def all_reduce(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        """Reduce into every rank's `receive`, which may be `send`."""

    def reduce(
        self,
        comm: Handle,
        send: int,
        receive: int,
        count: int,
        dtype: int,
        op: int,
        root: int,
        stream: int,
    ) -> None:
        """Reduce into the root's `receive`, which may be `send`; others' is not touched."""

    def broadcast(
        self,
        comm: Handle,
        send: int,
        receive: int,
        count: int,
        dtype: int,
        root: int,
        stream: int,
    ) -> None:
        """Copy the root's `send` into every rank's `receive`, which may be `send`."""

    def reduce_scatter(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        """Reduce; rank r receives part r of `count` elements, which may be that part of `send`."""

    def all_gather(
        self, comm: Handle, send: int, receive: int, count: int, dtype: int, stream: int
    ) -> None:
        """Gather parts of `count` elements in rank order; `send` may be this rank's place."""

    def send(self, comm: Handle, send: int, count: int, dtype: int, peer: int, stream: int) -> None:
        """Send to a rank, which must receive as much; in a group, or it may wait for ever."""

    def receive(
        self, comm: Handle, receive: int, count: int, dtype: int, peer: int, stream: int
    ) -> None:
        """Receive from a rank; in a group with what goes the other way."""


def connect(
    binding: Binding,
    comm: Handle,
    peers: Sequence[int],
    scratch: tuple[int, int],
    stream: int,
) -> None:
    """Exchange a byte with each peer: NCCL connects two ranks whole in their first message.

    Parameters
    ----------
    binding : Binding
    comm : Handle
    peers : sequence of int
        All ranks but this one.
    scratch : (int, int)
        Where a byte to send lies, and where one byte a peer is received.
    stream : int
    """
    dtype = DTYPES["uint8"]
    binding.group_start()
    try:
        for slot, peer in enumerate(peers):
            binding.receive(comm, scratch[1] + slot, 1, dtype, peer, stream)
            binding.send(comm, scratch[0], 1, dtype, peer, stream)
    finally:
        binding.group_end()
