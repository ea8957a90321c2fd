"""What the ranks of a node tell each other of their part in a collective."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ncclkv.arrays.dtypes import SUPPORTED, dtype_name
from ncclkv.comm.base import OPS, Buffer
from ncclkv.comm.node.arena import Place
from ncclkv.comm.node.node import Node
from ncclkv.errors import OrderMismatch

_NOWHERE = Place(-1, -1, -1)
_CALL_WORDS = 2
"""What `Call.pack` takes of a note."""


class Call(NamedTuple):
    """What must be the same on all ranks.

    Attributes
    ----------
    nbytes : int
    dtype : int
        An index of `SUPPORTED`.
    op : int
        An index of `OPS`; -1 for a broadcast.
    root : int
        -1 for all ranks.
    divided : bool
        Whether the ranks of a node update together.
    """

    nbytes: int
    dtype: int
    op: int
    root: int
    divided: bool

    def pack(self) -> tuple[int, int]:
        """As two numbers."""
        small = self.dtype | (self.op + 1) << 8 | self.divided << 16 | (self.root + 1) << 24
        return self.nbytes, small

    def __str__(self) -> str:
        name = SUPPORTED[self.dtype]
        if self.op < 0:
            return f"a broadcast of {self.nbytes} bytes of {name} from rank {self.root}"
        target = "all ranks" if self.root < 0 else f"rank {self.root}"
        return f"a reduction of {self.nbytes} bytes of {name} by {OPS[self.op]} to {target}"


def _unpack(nbytes: int, small: int) -> Call:
    """What `Call.pack` made numbers of."""
    return Call(
        nbytes, small & 0xFF, (small >> 8 & 0xFF) - 1, (small >> 24) - 1, bool(small >> 16 & 1)
    )


def reduction(
    nbytes: int, dtype: np.dtype[Any], op: str, root: int | None, *, divided: bool
) -> Call:
    """What all ranks say of a reduction."""
    whole = -1 if root is None else root
    return Call(nbytes, _number(dtype), OPS.index(op), whole, divided)


def broadcast(buffer: Buffer, root: int) -> Call:
    """What all ranks say of a broadcast."""
    return Call(buffer.nbytes, _number(buffer.dtype), -1, root, False)


@cache
def _number(dtype: np.dtype[Any]) -> int:
    """The number of a dtype, the same in every process."""
    return SUPPORTED.index(dtype_name(dtype))


def write(call: Call, send: Place | None, receive: Place | None) -> tuple[int, ...]:
    """A note: the call, and where neighbours find this rank's arrays."""
    return (*call.pack(), *(send or _NOWHERE), *(receive or _NOWHERE))


def places(note: Sequence[int]) -> tuple[Place | None, Place | None]:
    """Where the writer's arrays are."""
    send, receive = Place(*note[2:5]), Place(*note[5:8])
    return (None if send == _NOWHERE else send, None if receive == _NOWHERE else receive)


def check(call: Call, rank: int, other: int, note: Sequence[int]) -> None:
    """Refuse another call than this rank's.

    Raises
    ------
    OrderMismatch
        Naming both ranks and both calls.
    """
    theirs = _unpack(*note[:_CALL_WORDS])
    if theirs == call:
        return
    if theirs._replace(nbytes=call.nbytes) == call:
        what = f"sent {theirs.nbytes} bytes where {call.nbytes} were expected"
    else:
        what = f"called {theirs} where this rank called {call}"
    raise OrderMismatch(f"rank {rank}: rank {other} {what}; the two ranks made different calls")


def check_all(call: Call, node: Node, notes: Sequence[Sequence[int]]) -> None:
    """Refuse notes of other calls than this rank's; as `check`."""
    own = notes[node.index][:_CALL_WORDS]
    for other, text in zip(node.ranks, notes, strict=True):
        if text[:_CALL_WORDS] != own:
            check(call, node.rank, other, text)
