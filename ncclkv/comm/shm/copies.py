"""Copies of short arrays for neighbours that cannot map the arrays: the memory of a program.

A program copies what it publishes, so a rank sends no message to its neighbours.  Two copies are
used in turn: neighbours may read a copy while the next is made.  A window of MPI has no memory for
copies, so its ranks exchange messages.
"""

from __future__ import annotations

import numpy as np

from ncclkv.comm.buffers import allocate
from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.node import Node
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
            self._copies[turn] = grown
        copy = self._copies[turn][:nbytes]
        copy[:] = array.view(np.uint8)
        return self._node.offset_of(copy)

    def received(self, nbytes: int) -> Buffer:
        """Return memory for messages, valid until the next call."""
        if self._received.size < nbytes:
            self._received = allocate(nbytes)
        return self._received[:nbytes]


class CopyPool:
    """Lends `ProgramCopies` to the programs in flight.

    Parameters
    ----------
    node : Node
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._spare: list[ProgramCopies] = []

    def take(self) -> ProgramCopies:
        """Return copies that no program uses."""
        return self._spare.pop() if self._spare else ProgramCopies(self._node)

    def give_back(self, copies: ProgramCopies) -> None:
        """Keep the copies of a program that all ranks of the node have completed."""
        self._spare.append(copies)
