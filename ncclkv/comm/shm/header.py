"""`CollectiveHeader`: the arguments of a collective that each rank of a node publishes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

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
    "allgatherv": "an allgatherv of {nbytes} bytes from this rank",
    "barrier": "a barrier",
    "program": "{name}{size}",
}
VERBS = tuple(_TEXTS)
"""Kinds of collectives."""

_IN_PARTS = ("reduce_scatter", "allgatherv")

_OPS = ("", *OPS)

_NO_OFFSET = Offset(-1, -1, -1)
_MAX_NAMES = 1024
_program_names: dict[int, str] = {}
"""The names of the programs of this process, by their checksums."""

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
        -1 for all ranks.  Of parts of different lengths, a checksum of their lengths; of a program,
        a checksum of its name.
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
            nbytes=self.nbytes,
            root="all ranks" if self.root < 0 else f"rank {self.root}",
            name=_program_names.get(self.root, "another program"),
            size=f" of {self.nbytes} bytes" if self.nbytes else "",
        )

    def describe(self) -> str:
        """Describe all that ranks compare."""
        if self.verb in ("barrier", "program"):
            return str(self)
        names = [SUPPORTED[self.dtype], self.op, "updated together" if self.sharded_update else ""]
        return f"{self} ({', '.join(name for name in names if name)})"

    def mark(self) -> int:
        """Return a number of 64 bits, signed, that differs between programs."""
        return (self.root << 32 | crc32(self.nbytes.to_bytes(8, "little"))) - (1 << 63)


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


def reduce_scatter(send: Buffer, op: str, bounds: Sequence[int] = ()) -> CollectiveHeader:
    """Return the header of a reduce_scatter into parts of these `Owners`' bounds, or equal ones."""
    parts = _checksum(np.diff(bounds))
    return CollectiveHeader("reduce_scatter", send.nbytes, _number(send.dtype), op, parts)


def allgather(send: Buffer, counts: Sequence[int] = ()) -> CollectiveHeader:
    """Return the header of an allgather of these counts, or of equal ones."""
    parts = _checksum(counts)
    verb = "allgather" if parts < 0 else "allgatherv"
    return CollectiveHeader(verb, send.nbytes, _number(send.dtype), root=parts)


def _checksum(counts: Sequence[int] | NDArray[Any]) -> int:
    """Return a checksum of the lengths of parts; -1 if they are equal."""
    lengths = np.array(counts, np.int64)
    return crc32(lengths.tobytes()) if (lengths[1:] != lengths[:-1]).any() else -1


def program(what: str, nbytes: int) -> CollectiveHeader:
    """Return the header of a program with that name."""
    name = crc32(what.encode())
    if len(_program_names) >= _MAX_NAMES:
        _program_names.clear()
    _program_names[name] = what
    return CollectiveHeader("program", nbytes, root=name)


BARRIER = CollectiveHeader("barrier")
"""Header of a barrier."""


@cache
def _number(dtype: np.dtype[Any]) -> int:
    """Return the index of a dtype in `SUPPORTED`, the same in every process."""
    return SUPPORTED.index(dtype_name(dtype))


def write(call: CollectiveHeader, send: Offset | None, receive: Offset | None) -> tuple[int, ...]:
    """Return the words to publish but for the digest: the call, and the arrays' offsets."""
    return (*call.pack(), *(send or _NO_OFFSET), *(receive or _NO_OFFSET))


def offsets(words: Sequence[int]) -> tuple[Offset | None, Offset | None]:
    """Return the offsets of the sender's two arrays."""
    send, receive = Offset(*words[_HEAD : _HEAD + 3]), Offset(*words[_HEAD + 3 : _HEAD + 6])
    return (None if send == _NO_OFFSET else send, None if receive == _NO_OFFSET else receive)


class Place(NamedTuple):
    """Memory where the neighbours of a rank find an array.

    Attributes
    ----------
    offset : Offset
    shared : bool
        Whether the offset is one of the memory that all ranks of the node share.
    """

    offset: Offset
    shared: bool


def place_words(turn: int, place: Place | None) -> tuple[int, Sequence[int]]:
    """Return the position and the words of place 0 or 1 in a header; None if there is none."""
    if place is None:
        words = _NO_OFFSET
    elif place.shared:  # never at 0, where the segment has its control memory
        words = place.offset._replace(start=~place.offset.start)
    else:
        words = place.offset
    return _HEAD + turn * len(words), words


def place(turn: int, words: Sequence[int]) -> Place | None:
    """Return place 0 or 1 of a header; None if the neighbours cannot map the array."""
    offset = offsets(words)[turn]
    if offset is None or offset.start >= 0:
        return None if offset is None else Place(offset, shared=False)
    return Place(offset._replace(start=~offset.start), shared=True)


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
    alike = call.verb in _IN_PARTS and theirs._replace(nbytes=call.nbytes, root=call.root) == call
    if theirs == call:
        found = f"called {call} after other calls than this rank"
    elif alike and theirs.nbytes == call.nbytes:
        found = f"called {call} in other parts than this rank"
    elif alike or theirs._replace(nbytes=call.nbytes) == call:
        found = f"sent {theirs.nbytes} bytes where {call.nbytes} were expected"
    else:
        found = f"called {theirs.describe()} where this rank called {call.describe()}"
    raise OrderMismatch(
        f"rank {rank}: rank {peer} {found}; the two ranks made different calls", ranks=[peer]
    )


def check_all(
    call: CollectiveHeader, node: Node, headers: Sequence[Sequence[int]], nbytes: Sequence[int] = ()
) -> None:
    """Compare the headers of all ranks of a node with this rank's; as `check`.

    Ranks may send arrays of different size, which are then given by `nbytes`.
    """
    local = headers[node.index][:_HEAD]
    for index, (peer, words) in enumerate(zip(node.ranks, headers, strict=True)):
        if nbytes:
            check(call._replace(nbytes=nbytes[index]), local[0], node.rank, peer, words)
        elif words[:_HEAD] != local:
            check(call, local[0], node.rank, peer, words)
