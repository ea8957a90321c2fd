"""`CollectiveHeader`: the arguments of a collective that each rank of a node publishes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ncclkv.arrays.dtypes import SUPPORTED, dtype_name
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.node import Node
from ncclkv.comm.types import OPS, Buffer
from ncclkv.errors import OrderMismatch

_TEXTS = {
    "reduction": "a reduction of {nbytes} bytes to {root}",
    "broadcast": "a broadcast of {nbytes} bytes from {root}",
    "reduce_scatter": "a reduce_scatter of {nbytes} bytes",
    "allgather": "an allgather of {nbytes} bytes from each rank",
    "barrier": "a barrier",
}
VERBS = tuple(_TEXTS)
"""Kinds of collectives."""

_OPS = ("", *OPS)

_NOWHERE = Offset(-1, -1, -1)
_HEAD = 3
"""Words before the offsets: the digest, and the two of `CollectiveHeader.pack`."""


class CollectiveHeader(NamedTuple):
    """The arguments of a collective, which must be the same on all ranks.

    Attributes
    ----------
    verb : str
        One of `VERBS`.
    nbytes : int
        Size of the array that each rank sends.
    dtype : int
        An index of `SUPPORTED`.
    op : str
        One of `OPS`; "" without a reduction.
    root : int
        -1 for all ranks.
    sharded_update : bool
        Whether the ranks of a node update together.
    """

    verb: str
    nbytes: int = 0
    dtype: int = 0
    op: str = ""
    root: int = -1
    sharded_update: bool = False

    def pack(self) -> tuple[int, int]:
        """Pack the header into two words."""
        names = _OPS.index(self.op) << 8 | VERBS.index(self.verb) << 12
        return self.nbytes, self.dtype | names | self.sharded_update << 16 | (self.root + 1) << 24

    def __str__(self) -> str:
        return _TEXTS[self.verb].format(
            nbytes=self.nbytes, root="all ranks" if self.root < 0 else f"rank {self.root}"
        )

    def describe(self) -> str:
        """Describe all that ranks compare."""
        if self == BARRIER:
            return str(self)
        names = [SUPPORTED[self.dtype], self.op, "updated together" if self.sharded_update else ""]
        return f"{self} ({', '.join(name for name in names if name)})"


def _unpack(nbytes: int, small: int) -> CollectiveHeader:
    """Return the header that `CollectiveHeader.pack` has packed."""
    verb, op = VERBS[small >> 12 & 0xF], _OPS[small >> 8 & 0xF]
    return CollectiveHeader(
        verb, nbytes, small & 0xFF, op, (small >> 24) - 1, bool(small >> 16 & 1)
    )


def reduction(
    nbytes: int, dtype: np.dtype[Any], op: str, root: int | None, *, sharded_update: bool
) -> CollectiveHeader:
    """Return the header of a reduction."""
    receiver = -1 if root is None else root
    return CollectiveHeader("reduction", nbytes, _number(dtype), op, receiver, sharded_update)


def broadcast(buffer: Buffer, root: int) -> CollectiveHeader:
    """Return the header of a broadcast."""
    return CollectiveHeader("broadcast", buffer.nbytes, _number(buffer.dtype), root=root)


def reduce_scatter(send: Buffer, op: str) -> CollectiveHeader:
    """Return the header of a reduce_scatter."""
    return CollectiveHeader("reduce_scatter", send.nbytes, _number(send.dtype), op)


def allgather(send: Buffer) -> CollectiveHeader:
    """Return the header of an allgather."""
    return CollectiveHeader("allgather", send.nbytes, _number(send.dtype))


BARRIER = CollectiveHeader("barrier")
"""Header of a barrier."""


@cache
def _number(dtype: np.dtype[Any]) -> int:
    """Return the index of a dtype in `SUPPORTED`, the same in every process."""
    return SUPPORTED.index(dtype_name(dtype))


def write(call: CollectiveHeader, send: Offset | None, receive: Offset | None) -> tuple[int, ...]:
    """Return the words to publish but for the digest: the call, and the arrays' offsets."""
    return (*call.pack(), *(send or _NOWHERE), *(receive or _NOWHERE))


def offsets(words: Sequence[int]) -> tuple[Offset | None, Offset | None]:
    """Return the offsets of the sender's two arrays."""
    send, receive = Offset(*words[_HEAD : _HEAD + 3]), Offset(*words[_HEAD + 3 : _HEAD + 6])
    return (None if send == _NOWHERE else send, None if receive == _NOWHERE else receive)


def check(call: CollectiveHeader, digest: int, rank: int, peer: int, words: Sequence[int]) -> None:
    """Compare a peer's header with this rank's call and digest.

    Raises
    ------
    OrderMismatch
        When they differ; the message names both ranks and both calls.
    """
    theirs = _unpack(*words[1:_HEAD])
    if theirs == call and words[0] == digest:
        return
    if theirs == call:
        what = f"called {call} after other calls than this rank"
    elif theirs._replace(nbytes=call.nbytes) == call:
        what = f"sent {theirs.nbytes} bytes where {call.nbytes} were expected"
    else:
        what = f"called {theirs.describe()} where this rank called {call.describe()}"
    raise OrderMismatch(f"rank {rank}: rank {peer} {what}; the two ranks made different calls")


def check_all(call: CollectiveHeader, node: Node, headers: Sequence[Sequence[int]]) -> None:
    """Compare the headers of all ranks of a node with this rank's; as `check`."""
    local = headers[node.index][:_HEAD]
    for peer, words in zip(node.ranks, headers, strict=True):
        if words[:_HEAD] != local:
            check(call, local[0], node.rank, peer, words)
