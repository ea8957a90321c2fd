"""Copies of short arrays, which neighbours of a rank read: the memory of a program.

A copy takes less time than a wait until all neighbours have read, and neighbours need not be able
to map the array.  Two copies are used in turn: neighbours may read a copy while the next is made.
A window of MPI has no memory for copies, so its ranks exchange messages.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ncclkv.comm.buffers import allocate
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.node import Node
from ncclkv.comm.shm.sequence import CollectiveSlot
from ncclkv.comm.shm.staging import INLINE_BYTES
from ncclkv.comm.types import Buffer

_LEAST_BYTES = 4096


class ProgramCopies:
    """Two copies that neighbours read, and memory for the messages of neighbours.

    Parameters
    ----------
    node : Node
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._copies = [np.empty(0, np.uint8)] * 2
        self._offsets: list[Offset | None] = [None, None]
        self._received = np.empty(0, np.uint8)

    def make(self, turn: int, array: Buffer) -> Offset | None:
        """Copy an array into copy 0 or 1, which no neighbour reads any more; return its offset.

        None if the array is long, or no memory is left for a copy.
        """
        nbytes = array.nbytes
        if not 0 < nbytes <= INLINE_BYTES:
            return None
        if self._copies[turn].size < nbytes:
            grown = self._node.allocate(max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length()))
            if grown is None:
                return None
            self._copies[turn], self._offsets[turn] = grown, self._node.offset_of(grown)
        self._copies[turn][:nbytes] = array.view(np.uint8)
        return self._offsets[turn]

    def received(self, nbytes: int) -> Buffer:
        """Return memory for messages, valid until the next call."""
        if self._received.size < nbytes:
            self._received = allocate(nbytes)
        return self._received[:nbytes]


class CopyPool:
    """Lends `ProgramCopies` to programs; the oldest copies are lent again once nobody reads them.

    There are as many as programs were in flight at once, and they are never freed.

    Parameters
    ----------
    node : Node
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._used: deque[tuple[ProgramCopies, CollectiveSlot]] = deque()

    def take(self) -> ProgramCopies:
        """Return copies that no program uses."""
        if self._used and self._used[0][1].is_complete():
            return self._used.popleft()[0]
        return ProgramCopies(self._node)

    def give_back(self, copies: ProgramCopies, slot: CollectiveSlot) -> None:
        """Keep the copies of a program, which others use once all ranks are done with its slot."""
        self._used.append((copies, slot))
