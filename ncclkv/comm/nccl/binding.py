"""Binding: the narrow interface to NCCL, and NCCL's values of dtypes and ops.

Buffers and streams are addresses, and no argument is checked.  Counts are in elements of the dtype;
for `reduce_scatter` and `all_gather` they are elements *per rank*.  A collective returns at once
and runs in the order of its stream; `create`, `connect`, `destroy` and `abort` wait.

Every error is one of `ncclkv.errors`, with the library's version and the call in its message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ncclkv.arrays.dtype_table import TABLE

Handle = Any
"""Communicator, as the binding refers to it."""

DTYPES = {row.name: row.nccl for row in TABLE if row.nccl is not None}
"""NCCL's values of its dtypes, by NumPy's names (``nccl.h``, ncclDataType_t)."""

OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""NCCL's values of the ops (``nccl.h``, ncclRedOp_t)."""


def version_text(code: int) -> str:
    """Return NCCL's version code as text.

    Examples
    --------
    >>> version_text(23203)
    '2.32.3'
    """
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


Look = Callable[[], None]
"""Check of the other ranks while the host waits for them, which raises if it cannot go on."""

Collective = Callable[..., None]
"""Function that puts a collective on a stream, by a communicator and integers.

The arguments are a `Handle`, then the ints that `Binding` names.
"""


class Binding(Protocol):
    """NCCL, or its stand-in under test."""

    name: str
    """Name for messages, such as ``NCCL``."""

    uncaptured: str
    """Reason that collectives cannot be captured; empty if they can."""

    def version(self) -> int:
        """Return the version code of the library, such as 23203 for 2.32.3."""

    def unique_id(self) -> bytes:
        """Return a new id of 128 bytes, which all ranks pass to `create` once."""

    def another(self, timeout: float) -> Binding:
        """Return a binding with a timeout of its own, for another communicator of the device."""

    def create(self, size: int, unique_id: bytes, rank: int, look: Look) -> Handle:
        """Join the communicator of `unique_id`; wait until all `size` ranks have joined.

        ``look()`` is called repeatedly meanwhile, and raises if a rank cannot join any more.
        """

    def connect(
        self,
        comm: Handle,
        peers: Sequence[int],
        scratch: tuple[int, int],
        stream: int,
        look: Look | None = None,
    ) -> None:
        """Connect this rank with `peers`, all other ranks, for messages; wait for them.

        `scratch` holds two addresses: of a byte to send, and of one byte a peer to receive.
        ``look()`` is called as in `create`.
        """

    def destroy(self, comm: Handle, look: Look | None = None) -> None:
        """Free a communicator that is idle on every rank; all ranks must call this.

        ``look()`` is called as in `create`.
        """

    def abort(self, comm: Handle) -> None:
        """Abort the collectives in flight and free the communicator, without the other ranks."""

    def async_error(self, comm: Handle) -> str | None:
        """Return the text of an asynchronous error; None if there is none."""

    def group_start(self) -> None:
        """Begin a group: calls are delayed until the matching `group_end`."""

    def group_end(self) -> None:
        """End a group: the outermost end starts all its calls, in any order."""

    all_reduce: Collective
    """``(comm, send, receive, count, dtype, op, stream)``: reduce into `receive` of every rank.

    `receive` may be `send`.
    """

    reduce: Collective
    """``(comm, send, receive, count, dtype, op, root, stream)``: reduce into the root's `receive`.

    `receive` may be `send`.
    """

    broadcast: Collective
    """``(comm, send, receive, count, dtype, root, stream)``: copy the root's `send` to all ranks.

    `receive` may be `send`.
    """

    reduce_scatter: Collective
    """``(comm, send, receive, count, dtype, op, stream)``: reduce; rank r receives part r.

    A part has `count` elements; `receive` may be part r of `send`.
    """

    all_gather: Collective
    """``(comm, send, receive, count, dtype, stream)``: gather parts of `count` in rank order.

    `send` may be this rank's part of `receive`.
    """

    send: Collective
    """``(comm, send, count, dtype, peer, stream)``: send to a rank, which receives the same count.

    Outside a group this may deadlock.
    """

    receive: Collective
    """``(comm, receive, count, dtype, peer, stream)``: receive from a rank.

    Made in a group with the message in the other direction.
    """


@contextmanager
def group(binding: Binding) -> Iterator[None]:
    """Group the calls of a ``with`` block, so that no message waits for another."""
    binding.group_start()
    try:
        yield
    finally:
        binding.group_end()


def connect(
    binding: Binding, comm: Handle, peers: Sequence[int], scratch: tuple[int, int], stream: int
) -> None:
    """Exchange a byte with each peer: NCCL connects two ranks in their first message.

    Parameters
    ----------
    binding : Binding
    comm : Handle
    peers : sequence of int
        All ranks but this one.
    scratch : (int, int)
        Addresses of a byte to send, and of one byte a peer to receive.
    stream : int
    """
    dtype = DTYPES["uint8"]
    with group(binding):
        for slot, peer in enumerate(peers):
            binding.receive(comm, scratch[1] + slot, 1, dtype, peer, stream)
            binding.send(comm, scratch[0], 1, dtype, peer, stream)
